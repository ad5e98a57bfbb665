"""TrainingJob: everything that defines a training run, in one file that any worker can read.

Two runs of one job give the same weights, up to rounding, on any number of workers and with any micro batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from search_spaces.names import nearest_or_all
from search_spaces.settings import SettingError, TrainingSettings, default_of
from search_spaces.techniques import DECAYS
from trainers.errors import JobError
from trainers.json_text import json_text


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


NEVER = 1e300
"""A threshold beyond every value: no training run reaches it, so each continues to the end of its budget."""

LEAST_SHORTFALL = 1e-4
"""The shortfall of a perfect value, whose logarithm would not be finite; few evaluation sets can resolve less."""


@dataclass(frozen=True)
class Target:
    """The metric and the threshold that a training run must reach, e.g. top-1 >= 0.759."""

    metric: str
    threshold: float
    higher_is_better: bool = True

    @classmethod
    def best(cls, metric: str, *, higher_is_better: bool) -> Target:
        """Return a target for training runs that seek the best value: a threshold that no run reaches."""
        return cls(metric, NEVER if higher_is_better else -NEVER, higher_is_better)

    @property
    def ends(self) -> bool:
        """Whether reaching the target ends a training run; a target made by :meth:`best` never does."""
        return abs(self.threshold) < NEVER

    def __post_init__(self) -> None:
        if not _is_number(self.threshold) or not math.isfinite(self.threshold):
            raise JobError(f"target.threshold must be a finite number, but got {self.threshold!r}")

    def reached(self, value: float) -> bool:
        """Return whether ``value`` is at the threshold or beyond it; this is never true for NaN."""
        return value >= self.threshold if self.higher_is_better else value <= self.threshold

    def better(self, first: float, second: float) -> float:
        """Return the better of two values of the metric; any number is better than NaN."""
        if math.isnan(first) or math.isnan(second):
            return second if math.isnan(first) else first
        return max(first, second) if self.higher_is_better else min(first, second)

    def __str__(self) -> str:
        if not self.ends:
            return f"the best {self.metric}"
        return f"{self.metric} {'>=' if self.higher_is_better else '<='} {self.threshold:g}"


class EndedTraining(Protocol):
    """The attributes of a training run that has ended, whether it is a trial, an outcome or the trainer's report."""

    @property
    def state(self) -> str:
        """``reached``, ``censored``, ``diverged``, ..."""

    @property
    def epochs_to_target(self) -> float | None:
        """The epochs to target; None if the target was not reached."""

    @property
    def epochs(self) -> float | None:
        """The number of epochs trained."""

    @property
    def best_metric(self) -> float | None:
        """The best value of the target's metric at any evaluation."""


MEMORY, PACE = "memory_gb", "seconds_per_sample"
"""The figures of every training run that can be constrained in addition to its metrics: peak memory in gigabytes (10^9
bytes), and seconds per sample.
"""


@dataclass(frozen=True)
class Constraint:
    """A bound on a figure reported at the end of training: peak memory, seconds per sample, or another metric.

    ``name`` is :data:`MEMORY`, :data:`PACE` (including evaluations), or a metric, whose value at the last evaluation
    counts. A training run that violates the constraint, or does not report the figure, does not answer a
    :class:`Question`.
    """

    name: str
    bound: float
    at_most: bool = True

    def value(self, ended: object) -> float | None:
        """Return the figure of a training run that has ended; None if the figure is not a number."""
        if self.name == MEMORY:
            held = getattr(ended, "memory_bytes", None)
            return None if held is None else held / 1e9
        if self.name == PACE:
            seconds, samples = getattr(ended, "seconds", None), getattr(ended, "samples", None)
            return seconds / samples if seconds and samples else None
        told = (getattr(ended, "measures", None) or {}).get(self.name)
        if told is None or not _is_number(told) or not math.isfinite(told):
            return None
        return float(told)

    def excess(self, value: float) -> float:
        """Return how far a value exceeds the bound, in the unit of the figure; at most 0 if it is within the bound."""
        return value - self.bound if self.at_most else self.bound - value

    def fault(self, ended: object) -> str:
        """Return why a training run that has ended violates the bound, or "" if it does not."""
        value = self.value(ended)
        if value is None:
            return f"it did not report its {self.name}, which must be {self.rule}"
        return "" if self.excess(value) <= 0 else f"{self.name} {value:.4g} is not {self.rule}"

    @property
    def rule(self) -> str:
        """The bound in words, such as ``at most 16``."""
        return f"{'at most' if self.at_most else 'at least'} {self.bound:g}"

    def __str__(self) -> str:
        return f"{self.name} {self.rule}"


@dataclass(frozen=True)
class Question:
    """The question of a study: how soon training runs reach a target, or how good they get within ``epochs``.

    Runs are compared by :meth:`need`, a positive number that is better when smaller and on which settings act
    multiplicatively. It is either the epochs to target, or the shortfall at the end of the budget. For a loss, the
    shortfall is the loss itself. For a metric m of at most 1 that is better when higher, it is the odds against it,
    (1 - m) / m. These odds are close to the error 1 - m when the error is small, and every value of the odds
    corresponds to a metric between 0 and 1.

    If the runs have different lengths, ``epochs`` and ``samples`` are the length of the longest run, and the settings
    of each run state its own length. A run that violates one of ``constraints`` does not answer the question.
    """

    target: Target
    epochs: float | None = None
    samples: float | None = None
    constraints: tuple[Constraint, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether the question is how good training runs get within a fixed budget."""
        return self.epochs is not None

    def need(self, ended: EndedTraining) -> float | None:
        """Return the epochs that a training run needed, or its shortfall; None if there is no answer because the run
        was lost, stopped, too short, or outside the constraints.
        """
        if self.constraints and self.broken(ended):
            return None
        if self.epochs is None:
            return ended.epochs_to_target if ended.state == "reached" else None
        whole = (ended.epochs or 0.0) >= _whole_share(ended) * self._budget(ended)
        return self.shortfall(ended.best_metric) if ended.state == "censored" and whole else None

    def broken(self, ended: object) -> str:
        """Return why a training run that has ended violates the constraints, or "" if it does not."""
        return "; ".join(filter(None, (each.fault(ended) for each in self.constraints)))

    def _budget(self, ended: EndedTraining) -> float:
        """Return the planned epochs of a training run."""
        own = getattr(ended, "settings", {})
        length = own.get(LENGTH) if self.samples and isinstance(own, Mapping) else None
        share = length / self.samples if length and self.samples else 1.0
        return share * (self.epochs or 0.0)

    def shortfall(self, value: float | None) -> float | None:
        """Return the shortfall of a value of the metric from the best possible value; None for an impossible value.

        The best possible value itself has the shortfall ``LEAST_SHORTFALL``.
        """
        if value is None or not math.isfinite(value):
            return None
        if not self.target.higher_is_better:
            return (value or LEAST_SHORTFALL) if value >= 0 else None
        share = max(value, LEAST_SHORTFALL) if value < 1 else 1 - LEAST_SHORTFALL
        return (1 - share) / share if value <= 1 else None

    @property
    def metric_range(self) -> str:
        """The values of the metric that have a shortfall, in words: ``between 0 and 1`` or ``at least 0``."""
        return "between 0 and 1" if self.target.higher_is_better else "at least 0"

    def metric_fault(self, value: float | None) -> str:
        """Return why a value of the metric has no shortfall, and the way out; "" if it has one or is not a number."""
        if value is None or not math.isfinite(value) or self.shortfall(value) is not None:
            return ""
        way_out = (
            "report shares instead of per cent, such as 0.759 for 75.9 %"
            if self.target.higher_is_better
            else "report a loss or an error of at least 0"
        )
        return (
            f"{self.target.metric} was {value:.4g}, but a best metric can be forecast only if its values are "
            f"{self.metric_range}: {way_out}"
        )

    def told(self, need: float) -> float:
        """Convert a value of :meth:`need` to the question's own unit: epochs, or the metric."""
        return 1 / (1 + need) if self.fixed and self.target.higher_is_better else need

    @property
    def answer(self) -> str:
        """The question in words: ``epochs to target``, ``best top1``."""
        return f"best {self.target.metric}" if self.fixed else "epochs to target"

    @property
    def unit(self) -> str:
        """The unit written after a number from :meth:`told`: ``epochs``, ``top1``."""
        return self.target.metric if self.fixed else "epochs"

    def __str__(self) -> str:
        return (
            f"{self.target} within {self.epochs:g} epochs"
            if self.epochs is not None
            else str(self.target)
        )


def _whole_share(ended: EndedTraining) -> float:
    """Return the share of the budget from which a training run counts as trained to the end: 0.99, or the complete
    batches of an epoch if the run leaves out the incomplete one.
    """
    batch, samples = getattr(ended, "global_batch_size", None), getattr(ended, "samples", None)
    if not (batch and samples and ended.epochs):
        return 0.99
    updates = samples / ended.epochs / batch  # per epoch
    complete = math.floor(updates * (1 + 1e-9))
    return min(0.99, (1 - 1e-6) * complete / updates) if complete else 0.99


LENGTH = "training_samples"
"""The setting in which a training run states its own length, if runs have different lengths."""

HOW_SOON = Question(Target("", 0.0))
"""The question of how soon any target is reached, which suffices to compare epochs to target."""


DIGEST_DIGITS = 16
"""Length of the digest of a job."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training run: the workload and its data, the target, the recipe, the global batch size and the seed.

    ``epochs`` is the budget: if it ends before the target is reached, the epochs to target are censored.
    ``micro_batch_size`` is the largest number of samples per forward pass (None: the workload's own limit).
    ``search_path`` is the first folder in which the module of a custom workload is looked up.
    """

    workload: str
    data: dict[str, Any]
    target: Target
    settings: TrainingSettings
    global_batch_size: int
    seed: int
    epochs: float
    evaluations_per_epoch: float = 4
    micro_batch_size: int | None = None
    search_path: str | None = None

    def __post_init__(self) -> None:
        _check_count("global_batch_size", self.global_batch_size)
        if self.micro_batch_size is not None:
            _check_count("micro_batch_size", self.micro_batch_size)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise JobError(f"seed must be a whole number of at least 0, but got {self.seed!r}")
        _check_positive("epochs", self.epochs)
        _check_positive("evaluations_per_epoch", self.evaluations_per_epoch)
        decay, warmup = self.settings.decay, self.settings.warmup_epochs
        if DECAYS[decay].ends and self.settings.decay_epochs is None and warmup >= self.epochs:
            raise JobError(
                f"a {decay} decay over the whole budget needs warmup_epochs below epochs, but got "
                f"warmup_epochs {warmup:g} and epochs {self.epochs:g}; set decay_epochs or a "
                "larger budget"
            )

    @property
    def question(self) -> Question:
        """The question of the job: how soon it reaches its target, or how good it gets within its budget."""
        return Question(self.target, None if self.target.ends else self.epochs)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingJob:
        """Create a job from plain values; raise :class:`JobError` for an unknown or missing key or an invalid value."""
        plain = _known(cls, values, "")
        plain["target"] = Target(**_known(Target, plain["target"], "target."))
        try:
            plain["settings"] = TrainingSettings.from_dict(plain["settings"])
        except SettingError as error:
            raise JobError(f"settings: {error}") from error
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain values that JSON can represent."""
        return {**dataclasses.asdict(self), "settings": self.settings.to_dict()}

    def digest(self) -> str:
        """Return a short digest of what is trained: the workload, target, settings, global batch size and budget.

        The seed does not count, and neither does anything that may differ between machines: the data, the micro batch
        size and the folder of modules. Settings at their defaults do not count either, so that a release with more
        settings gives the same digest.
        """
        settings = {
            name: value
            for name, value in self.settings.to_dict().items()
            if name == "own" or value != _plain(default_of(name))
        }
        trained = (self.workload, dataclasses.asdict(self.target), self.global_batch_size)
        text = json_text(_plain([*trained, self.epochs, settings]))
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]

    @classmethod
    def load(cls, path: Path | str) -> TrainingJob:
        """Read a job from a JSON file; raise :class:`JobError` if the file cannot be read or is not a job."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise JobError(f"cannot read the job file {path}: {error.strerror}") from error
        except ValueError as error:
            raise JobError(f"the job file {path} is not JSON: {error}") from error
        return cls.from_dict(values)

    def save(self, path: Path | str) -> None:
        """Write the job to a JSON file."""
        Path(path).write_text(json_text(self.to_dict(), indent=2) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return plain values in a fixed order, with lists for tuples and floats for numbers, however they were stored."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(value) if _is_number(value) else value


def _known(kind: type, values: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        what = prefix.rstrip(".") or "a job"
        raise JobError(f"{what} must be a mapping of names to values, but got {values!r}")
    names = {knob.name for knob in dataclasses.fields(kind)}
    for name in values:
        if name not in names:
            raise JobError(f"a job has no key '{prefix}{name}'{nearest_or_all(str(name), names)}")
    for knob in dataclasses.fields(kind):
        if knob.default is dataclasses.MISSING and knob.name not in values:
            raise JobError(f"a job needs the key '{prefix}{knob.name}'")
    return dict(values)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise JobError(f"{name} must be a whole number of samples of at least 1, but got {value!r}")


def _check_positive(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 < value < math.inf:
        raise JobError(f"{name} must be a positive number, but got {value!r}")
