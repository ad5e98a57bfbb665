"""The global batch size as a pure function of progress, and the position of each update in the sample stream.

    constant     the job's global batch size throughout
    piecewise    batch_factors[i] times that size from batch_milestones[i] epochs on; the rate follows batch_rate_rule.
                 Mikami et al. (arXiv:1811.05233) go from 34K to 68K in this way.
    doubling     twice the size at doubling_epochs, and again at doubling_spacing times the progress of each previous
                 doubling, up to batch_limit_factor; the rate follows batch_rate_rule. Merrill et al. (arXiv:2505.23971)
                 double a small batch as the measured critical batch size grows, and scale the rate with its square
                 root.
    noise_scale  twice the size at an evaluation where the measured gradient noise scale is noise_scale_ratio times the
                 doubled batch or more, up to batch_limit_factor; the rate follows batch_rate_rule. The batch size thus
                 stays below the critical batch size (arXiv:1812.06162, equation 2.7) and doubles as that does
                 (arXiv:2505.23971, section 4). The decisions are kept in checkpoints as milestones and factors of
                 'piecewise'.
    grow         where decay 'step' would multiply the rate by decay_factor, the batch grows by 1 / decay_factor
                 instead, up to batch_limit_factor; the remaining factor lowers the rate. The noise scale
                 lr (N / B - 1) falls by the same amount either way (Smith et al., arXiv:1711.00489).

The size changes with the first update that starts at or after a milestone. Consecutive updates with the same size form
a phase.
"""

# every control takes the same arguments, used or not
# ruff: noqa: ARG002

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from search_spaces.settings import TrainingSettings
from trainers.errors import JobError
from trainers.schedules.arithmetic import NUMBERS, Arithmetic, Value
from trainers.schedules.formulas import chosen_formula

MOST_GROWTH = 2.0**20
"""The largest factor by which a batch grows by doubling without an explicit limit."""


class BatchControl(Protocol):
    """How the batch changes, as pure functions of the settings and of the progress in epochs."""

    named: str
    """The settings that determine the sizes; an error about a size with a fraction of a sample names them."""

    def boundaries(self, settings: TrainingSettings, budget_epochs: float) -> Sequence[float]:
        """Return the epochs at which the size changes, in increasing order."""

    def factor(self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value) -> Value:
        """Return the global batch size of the update that starts after ``epochs`` epochs, relative to the job's own."""

    def rate_factor(
        self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value
    ) -> Value | float:
        """Return the factor of the learning rate."""


class ConstantBatch:
    """A constant batch size."""

    named = "global_batch_size"

    def boundaries(self, settings: TrainingSettings, budget_epochs: float) -> Sequence[float]:
        """Return no boundaries."""
        return ()

    def factor(self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value) -> Value:
        """Return 1."""
        return by.constant(1.0, epochs)

    def rate_factor(
        self,
        by: Arithmetic[Value],
        settings: TrainingSettings,
        epochs: Value,
    ) -> Value | float:
        """Return 1."""
        return 1.0


class BatchPieces:
    """A batch size that changes to the next of ``batch_factors`` at each of ``batch_milestones``."""

    named = "batch_factors"

    def boundaries(self, settings: TrainingSettings, budget_epochs: float) -> Sequence[float]:
        """Return the milestones."""
        return settings.batch_milestones

    def factor(self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value) -> Value:
        """Return the factor of the last milestone passed."""
        return by.by_milestones(epochs, settings.batch_milestones, [1.0, *settings.batch_factors])

    def rate_factor(
        self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value
    ) -> Value | float:
        """Return the rate factor from ``batch_rate_rule``: 1, the batch factor, or its square root."""
        if settings.batch_rate_rule == "none":
            return 1.0
        linear = settings.batch_rate_rule == "linear"
        factors: list[float] = [
            each if linear else math.sqrt(each) for each in settings.batch_factors
        ]
        return by.by_milestones(epochs, settings.batch_milestones, [1.0, *factors])


class BatchDoubling:
    """Doublings at planned times; if the limit is not a power of 2, the last change goes up to the limit."""

    named = "batch_limit_factor"

    def boundaries(self, settings: TrainingSettings, budget_epochs: float) -> Sequence[float]:
        """Return the times within the budget at which the size changes."""
        at, spacing = settings.value("doubling_epochs"), settings.value("doubling_spacing")
        limit = settings.batch_limit_factor or MOST_GROWTH
        found: list[float] = []
        while at < budget_epochs and 2.0 ** len(found) < limit:
            found.append(at)
            at *= spacing
        return found

    def factor(self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value) -> Value:
        """Return a power of 2, up to the limit."""
        times, sizes = self._course(settings)
        return by.by_milestones(epochs, times, sizes)

    def rate_factor(
        self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value
    ) -> Value | float:
        """Return the rate factor from ``batch_rate_rule``."""
        if settings.batch_rate_rule == "none":
            return 1.0
        times, sizes = self._course(settings)
        linear = settings.batch_rate_rule == "linear"
        factors = [each if linear else math.sqrt(each) for each in sizes]
        return by.by_milestones(epochs, times, factors)

    def _course(self, settings: TrainingSettings) -> tuple[Sequence[float], list[float]]:
        times = self.boundaries(settings, math.inf)
        limit = settings.batch_limit_factor or MOST_GROWTH
        return times, [min(2.0**doublings, limit) for doublings in range(len(times) + 1)]


class BatchByNoise(ConstantBatch):
    """A batch size that a training run decides to double at its evaluations; constant until the first doubling."""

    named = "batch_limit_factor"

    @staticmethod
    def grows(
        settings: TrainingSettings, factor: float, global_batch_size: int, noise: float
    ) -> bool:
        """Return whether a batch of ``factor * global_batch_size`` samples doubles at a noise scale of ``noise``."""
        grown, limit = 2 * factor, settings.batch_limit_factor or MOST_GROWTH
        needed = settings.value("noise_scale_ratio") * grown * global_batch_size
        return grown <= limit and noise >= float(needed)

    @staticmethod
    def pieces(
        settings: TrainingSettings, growth: Sequence[tuple[float, float]]
    ) -> TrainingSettings:
        """Return the decisions as settings: factors of the first batch size, and the epochs from which each applies."""
        plain = {name: each for name, each in settings.own.items() if name != "noise_scale_ratio"}
        return TrainingSettings.from_dict(
            {
                **settings.to_dict(),
                "own": plain,
                "batch_control": "piecewise",
                "batch_milestones": [epochs for epochs, _ in growth],
                "batch_factors": [factor for _, factor in growth],
            }
        )


class BatchGrowth:
    """A batch size that grows where decay 'step' would lower the rate; the rate factor undoes that decay."""

    named = "decay_factor and batch_limit_factor"

    def boundaries(self, settings: TrainingSettings, budget_epochs: float) -> Sequence[float]:
        """Return the decay milestones; during the warmup the rate does not decay, so the batch does not grow."""
        return sorted(
            {max(milestone, settings.warmup_epochs) for milestone in settings.decay_milestones}
        )

    def factor(self, by: Arithmetic[Value], settings: TrainingSettings, epochs: Value) -> Value:
        """Return the reciprocal of the step decay, up to the limit."""
        limit = settings.batch_limit_factor or math.inf
        sizes = [min(each, limit) for each in step_factors(settings, -1)]
        return by.choose(
            epochs >= settings.warmup_epochs,
            lambda: by.by_milestones(epochs, settings.decay_milestones, sizes),
            lambda: by.constant(1.0, epochs),
        )

    rate_factor = factor


def batch_factor(settings: TrainingSettings, epochs: float) -> float:
    """Return the global batch size of the update that starts after ``epochs`` epochs, relative to the job's own."""
    return _control(settings).factor(NUMBERS, settings, epochs)


def batch_rate_factor(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value
) -> Value | float:
    """Return the factor of the learning rate under batch control; with 'grow', the factor undoes the step decay."""
    return _control(settings).rate_factor(by, settings, epochs)


def batch_sizes(
    settings: TrainingSettings, global_batch_size: int, budget_epochs: float
) -> tuple[int, ...]:
    """Return the global batch sizes of a training run within its budget, in order, starting with its first.

    Sizes that the run itself decides on are not known in advance. Raises :class:`~trainers.errors.JobError` if a factor
    does not give a whole number of samples.
    """
    changes = _control(settings).boundaries(settings, budget_epochs)
    later = [
        _size(settings, global_batch_size, epochs) for epochs in changes if epochs < budget_epochs
    ]
    return tuple(dict.fromkeys([global_batch_size, *later]))


def _control(settings: TrainingSettings) -> BatchControl:
    control: BatchControl = chosen_formula("batch_control", settings)()
    return control


def step_factors(settings: TrainingSettings, sign: int) -> list[float]:
    """Return ``decay_factor`` to the power of ``sign`` times n, for each possible number n of milestones passed."""
    passed = range(len(settings.decay_milestones) + 1)
    return [math.pow(settings.decay_factor, sign * each) for each in passed]


@dataclass(frozen=True)
class BatchSizePhase:
    """Updates with one global batch size, starting at update ``first_step`` and stream position ``first_sample``."""

    first_step: int
    first_sample: int
    global_batch_size: int


@dataclass(frozen=True)
class BatchSchedule:
    """The batch sizes and samples of all updates of a training run within its budget, and the evaluations in between.

    A phase ends with an evaluation, so all updates between two evaluations have the same size.
    """

    phases: tuple[BatchSizePhase, ...]
    train_samples: int
    total_steps: int
    evaluations_per_epoch: float

    def phase(self, step: int) -> BatchSizePhase:
        """Return the phase of update ``step`` (from 0)."""
        if len(self.phases) == 1:  # true for most runs, and called several times per update
            return self.phases[0]
        return self.phases[bisect_right(self.phases, step, key=lambda phase: phase.first_step) - 1]

    def samples(self, step: int) -> int:
        """Return the samples processed before update ``step``, which is its position in the sample stream."""
        phase = self.phase(step)
        return phase.first_sample + (step - phase.first_step) * phase.global_batch_size

    def epochs(self, step: int) -> float:
        """Return the epochs processed before update ``step``."""
        return self.samples(step) / self.train_samples

    def next_evaluation(self, step: int) -> int:
        """Return the step after ``step`` at which the next evaluation is due."""
        phase = self.phase(step)
        steps_per_epoch = self.train_samples / phase.global_batch_size
        every = max(1, round(steps_per_epoch / self.evaluations_per_epoch))
        following = step + every - (step - phase.first_step) % every
        end = next(
            (after.first_step for after in self.phases if after.first_step > step), self.total_steps
        )
        # an evaluation shortly before the one at the end of a phase would add nothing
        return (
            end
            if following > end or (end < self.total_steps and 2 * (end - following) < every)
            else following
        )


def batch_schedule(
    settings: TrainingSettings,
    global_batch_size: int,
    train_samples: int,
    budget_epochs: float,
    evaluations_per_epoch: float,
) -> BatchSchedule:
    """Return the batch schedule of a training run whose first batch has ``global_batch_size`` samples.

    Raises :class:`~trainers.errors.JobError` if a factor does not give a whole number of samples.
    """
    phases = [BatchSizePhase(0, 0, global_batch_size)]
    for boundary in _control(settings).boundaries(settings, budget_epochs):
        last, steps = phases[-1], _steps_until(boundary, phases[-1], train_samples)
        if last.first_step + steps >= _end(last, train_samples, budget_epochs):
            break
        first_sample = last.first_sample + steps * last.global_batch_size
        start = BatchSizePhase(
            last.first_step + steps,
            first_sample,
            _size(settings, global_batch_size, first_sample / train_samples),
        )
        if steps == 0:
            phases[-1] = start
        elif start.global_batch_size != last.global_batch_size:
            phases.append(start)
    return BatchSchedule(
        tuple(phases),
        train_samples,
        _end(phases[-1], train_samples, budget_epochs),
        evaluations_per_epoch,
    )


def _steps_until(boundary: float, last: BatchSizePhase, train_samples: int) -> int:
    size = last.global_batch_size
    steps = max(0, math.floor((boundary * train_samples - last.first_sample) / size))
    # the same comparison as the schedule's, so that rate and batch change with the same update
    while (last.first_sample + steps * size) / train_samples < boundary:
        steps += 1
    return steps


def _size(settings: TrainingSettings, first_size: int, epochs: float) -> int:
    size = batch_factor(settings, epochs) * first_size
    if round(size) < 1 or abs(size - round(size)) > 1e-6 * size:
        raise JobError(
            f"{_control(settings).named} must give whole global batch sizes, but the size from epoch {epochs:g} "
            f"on is {size:g} ({size / first_size:g} times global_batch_size {first_size}); change the factors or "
            "global_batch_size"
        )
    return round(size)


def _end(phase: BatchSizePhase, train_samples: int, budget_epochs: float) -> int:
    size = phase.global_batch_size
    steps = budget_epochs * (train_samples / size) - phase.first_sample / size
    return phase.first_step + max(1, math.ceil(steps - 1e-9))
