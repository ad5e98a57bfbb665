"""The base classes of training runs, which track their progress and decide when to end.

A :class:`TrainingRun` does its updates and evaluations in this process, by a schedule, and its subclasses define the
updates: ``trainers.loop.synchronous.SynchronousTraining`` trains a PyTorch model, and ``noisy_quadratic`` updates the
modes of a quadratic. ``trainers.workloads.program`` follows a program that trains by itself. Importing this module does
not import torch.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.names import nearest_or_all
from search_spaces.settings import TrainingSettings
from trainers.errors import CheckpointError, JobError, WorkloadError
from trainers.job import TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.schedules.batch_size import BatchByNoise, batch_schedule

DIVERGENCE_FACTOR = 3.0
"""A run has diverged when its mean loss between two evaluations exceeds this multiple of its first loss."""


@dataclass
class TrainingProgress:
    """The progress of a training run, in plain values that a checkpoint can hold directly."""

    step: int = 0
    seconds: float = 0.0
    first_loss: float = math.nan
    best_metric: float = math.nan
    final_metric: float = math.nan
    state: str = "running"
    reason: str = ""
    memory_bytes: int | None = None
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingSegment:
    """The updates up to an evaluation, and the results of the evaluation.

    ``train_loss`` is the mean loss over the updates, ``first_loss`` is the loss of the first update, and
    ``learning_rate`` is the rate of the last update. ``scores`` holds every metric. ``seconds`` is the time for the
    updates and the evaluation, and ``memory_bytes`` is their peak memory, None if not measured.
    """

    train_loss: float
    first_loss: float
    learning_rate: float
    scores: Mapping[str, float]
    seconds: float
    gradient_noise_scale: float | None = None
    memory_bytes: int | None = None


class AnyTraining(ABC):
    """A training run in progress; ``advance`` goes to the next evaluation until ``finished``.

    ``metrics`` and ``train_samples`` come from the workload. ``resumed`` holds the evaluations of earlier starts if the
    run keeps its own files and resumes from them by itself; it is None if :meth:`state_dict` gives the state.
    """

    resumed: list[ConvergencePoint] | None = None

    def __init__(self, job: TrainingJob, metrics: Mapping[str, bool], train_samples: int) -> None:
        _check_target(job, metrics)
        self.job = job
        self.progress = TrainingProgress()
        self.train_samples = train_samples

    @property
    @abstractmethod
    def epochs(self) -> float:
        """The progress of the run: samples processed over ``train_samples``."""

    @abstractmethod
    def advance(self) -> ConvergencePoint | None:
        """Train to the next evaluation, and decide whether to continue; return None if the run ended before it."""

    def gather(self) -> None:  # noqa: B027 - most keep everything on every worker
        """Copy state that only some workers keep to every worker; all must call this before any calls `state_dict`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as tensors and plain values; the same on every worker."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`, with any number of workers and any micro batch."""

    def close(self) -> None:  # noqa: B027 - most have started nothing
        """Stop everything that the run has started; may be called at any point."""

    def sample_images(self) -> dict[str, Any] | None:
        """Return the workload's sample images of the current model (``trainers.loop.sample_images``), or None."""
        return None

    @property
    def finished(self) -> bool:
        """Whether the target was reached, the budget was spent, or the run diverged."""
        return self.progress.state != "running"

    @property
    def outcome(self) -> TrainingOutcome:
        """The outcome of the run; raises :class:`JobError` before it is ``finished``."""
        if not self.finished:
            raise JobError(
                "a run has an outcome only once it is finished; call advance() until it is"
            )
        at, epochs = self.progress, self.epochs
        return TrainingOutcome(
            state=at.state,
            epochs_to_target=epochs if at.state == "reached" else None,
            epochs=epochs,
            steps=at.step,
            seconds=at.seconds,
            best_metric=at.best_metric,
            final_metric=at.final_metric,
            reason=at.reason,
            memory_bytes=at.memory_bytes,
            micro_batch_size=self.found_micro_batch,
            measures=dict(at.measures),
        )

    @property
    def found_micro_batch(self) -> int | None:
        """The micro batch size found to fit in memory; None if the requested one fitted."""
        return None

    def _measure(self, scores: Mapping[str, float], memory_bytes: int | None) -> None:
        """Record the results of an evaluation other than the target's metric."""
        at = self.progress
        at.measures = {
            name: float(value)
            for name, value in scores.items()
            if name != self.job.target.metric and math.isfinite(value)
        }
        if memory_bytes is not None:
            at.memory_bytes = max(memory_bytes, at.memory_bytes or 0)

    def _decide(
        self, train_loss: float | None, metric: float, *, budget_spent: bool, counts: bool = True
    ) -> None:
        """Decide whether the run continues; ``train_loss`` is None if it was not reported. The ``metric`` counts as the
        best one only if ``counts``.
        """
        at, target = self.progress, self.job.target
        at.final_metric = float(metric)  # a workload may compute with NumPy's numbers
        if counts:
            at.best_metric = target.better(at.best_metric, at.final_metric)
        limit = at.first_loss + (DIVERGENCE_FACTOR - 1) * abs(at.first_loss)
        if train_loss is not None and not (math.isfinite(train_loss) and train_loss <= limit):
            at.state = "diverged"
            at.reason = (
                f"the mean training loss over the updates up to {at.step} was {train_loss:.4g}, which is not finite "
                f"or above {DIVERGENCE_FACTOR:g} times the first update's {at.first_loss:.4g}"
            )
        elif target.reached(metric):
            at.state = "reached"
            at.reason = f"{target.metric} {metric:.4g} reached the target {target}"
        elif budget_spent:
            at.state = "censored"
            budget, best = f"the budget of {self.job.epochs:g} epochs", f"{at.best_metric:.4g}"
            fault = "" if target.ends else self.job.question.metric_fault(at.best_metric)
            at.reason = (
                f"{budget} ended before the target {target}; the best was {best}"
                if target.ends
                else f"{budget} is spent; {fault or f'{target} was {best}'}"
            )


class TrainingRun(AnyTraining):
    """A training run that does its updates in this process, by a schedule of batches and evaluations.

    ``scheduled`` are the settings that determine the learning rate and the batch size: the job's settings or, if the
    batch size follows the noise scale, the settings decided so far. ``batch_growth`` holds factors of the first batch
    size, each with the epochs from which it applies.
    """

    def __init__(self, job: TrainingJob, metrics: Mapping[str, bool], train_samples: int) -> None:
        super().__init__(job, metrics, train_samples)
        self.batch_growth: list[tuple[float, float]] = []
        self._plan_batches()

    @abstractmethod
    def _train(self, first_step: int, last_step: int) -> TrainingSegment:
        """Do the updates from ``first_step`` up to but not including ``last_step``, then evaluate.

        The updates all belong to one phase and therefore have the same global batch size.
        """

    @abstractmethod
    def _weights(self) -> dict[str, Any]:
        """Return the state that updates change, as tensors and plain values."""

    @abstractmethod
    def _load_weights(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`_weights`; ``progress`` has already been restored."""

    def _plan_batches(self) -> None:
        """Schedule the updates according to the batch growth so far."""
        job, growth = self.job, self.batch_growth
        self.scheduled = BatchByNoise.pieces(job.settings, growth) if growth else job.settings
        self.batch_schedule = batch_schedule(
            self.scheduled,
            job.global_batch_size,
            self.train_samples,
            job.epochs,
            job.evaluations_per_epoch,
        )

    def _follow_batches(self) -> None:
        """Prepare the next updates according to the new schedule."""

    def _grow_batch(self, noise_scale: float | None) -> None:
        """Double the batch size from here on, if the settings enable this and the noise scale permits it."""
        job = self.job
        if job.settings.batch_control != "noise_scale" or noise_scale is None:
            return
        factor = self.batch_growth[-1][1] if self.batch_growth else 1.0
        if BatchByNoise.grows(job.settings, factor, job.global_batch_size, noise_scale):
            self.batch_growth.append((self.epochs, 2 * factor))
            self._plan_batches()
            self._follow_batches()

    @property
    def epochs(self) -> float:
        """The progress of the run in epochs, by its schedule."""
        return self.batch_schedule.epochs(self.progress.step)

    def advance(self) -> ConvergencePoint:
        """Train to the next evaluation, evaluate, and decide whether the run continues.

        Raises :class:`JobError` if the run is finished.
        """
        if self.finished:
            raise JobError(f"the training is finished: {self.progress.reason}")
        last = self.batch_schedule.next_evaluation(self.progress.step)
        return self.evaluated(self._train(self.progress.step, last), last)

    def evaluated(self, segment: TrainingSegment, step: int) -> ConvergencePoint:
        """Record the updates up to ``step``, where an evaluation was due, and decide whether the run continues."""
        at = self.progress
        at.step, at.seconds = step, at.seconds + segment.seconds
        if math.isnan(at.first_loss):
            at.first_loss = segment.first_loss
        self._measure(segment.scores, segment.memory_bytes)
        self._decide(
            segment.train_loss,
            segment.scores[self.job.target.metric],
            budget_spent=at.step >= self.batch_schedule.total_steps,
        )
        point = self._point(segment)
        if not self.finished:
            self._grow_batch(segment.gradient_noise_scale)
        return point

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as tensors and plain values; the same on every worker."""
        return {
            "job": _identity(self.job),
            **self._weights(),
            "progress": dataclasses.asdict(self.progress),
            "batch_growth": [list(each) for each in self.batch_growth],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`, with any number of workers and any micro batch.

        Raises :class:`CheckpointError` if the state belongs to another job or is not the state of a training run.
        """
        if set(state) | {"batch_growth"} != set(self.state_dict()):
            raise CheckpointError(
                "the file is not a checkpoint of a training run; delete it to start over"
            )
        _check_same_job(state["job"], self.job)
        self.progress = TrainingProgress(**state["progress"])
        self.batch_growth = [(epochs, factor) for epochs, factor in state.get("batch_growth", ())]
        self._plan_batches()
        self._follow_batches()
        self._load_weights(state)

    def _point(self, segment: TrainingSegment) -> ConvergencePoint:
        at = self.progress
        return ConvergencePoint(
            step=at.step,
            samples=self.batch_schedule.samples(at.step),
            epochs=self.batch_schedule.epochs(at.step),
            seconds=at.seconds,
            train_loss=segment.train_loss,
            loss=segment.scores["loss"],
            metric=segment.scores[self.job.target.metric],
            learning_rate=segment.learning_rate,
            global_batch_size=self.batch_schedule.phase(at.step - 1).global_batch_size,
            gradient_noise_scale=segment.gradient_noise_scale,
        )


def _check_target(job: TrainingJob, metrics: Mapping[str, bool]) -> None:
    target = job.target
    if target.metric not in metrics:
        raise WorkloadError(
            f"the workload {job.workload!r} has no metric {target.metric!r}"
            f"{nearest_or_all(target.metric, metrics)}"
        )
    if target.higher_is_better != metrics[target.metric]:
        better = "higher" if metrics[target.metric] else "lower"
        raise JobError(
            f"a {better} {target.metric} is better, but the target is {target}; "
            f"set higher_is_better to {str(not target.higher_is_better).lower()}"
        )


def _identity(job: TrainingJob) -> dict[str, Any]:
    """Return the inputs that determine the weights, excluding file paths, micro batch and decoding threads."""
    incidental = ("micro_batch_size", "search_path")
    identity = {name: value for name, value in job.to_dict().items() if name not in incidental}
    identity["data"] = {
        name: value for name, value in job.data.items() if name != "decoding_threads"
    }
    return identity


def _check_same_job(identity: Mapping[str, Any], job: TrainingJob) -> None:
    mine, its = _by_name(_identity(job)), _by_name(identity)
    for name in its | {name: None for name in mine if name.startswith("settings.")}:
        if mine.get(name) != its.get(name):
            raise CheckpointError(
                f"the checkpoint belongs to another job: its {name} is {its.get(name)!r}, but this "
                f"job's is {mine.get(name)!r}; delete it to start over"
            )


def _by_name(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return each setting under a name of its own; one that an earlier release did not have has its default."""
    settings = {**TrainingSettings().to_dict(), **identity.get("settings", {})}
    named = {f"settings.{name}": value for name, value in settings.items()}
    return {name: value for name, value in identity.items() if name != "settings"} | named
