"""Evidence: what was observed on the ladder, as single trials or as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from hpo.errors import EvidenceError
from trainers.job import Question

STATES = ("reached", "censored", "diverged", "pruned")
LEAST_RUNS_OF_A_RECIPE = 4  # a configuration is run this often only after it has been chosen
Scale: TypeAlias = Literal["log", "linear"]


@dataclass(frozen=True)
class ScaledSetting:
    """A numeric setting that was tuned at every rung: its scale, and the bounds of the search."""

    name: str
    scale: Scale = "log"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise EvidenceError(
                f"scale of {self.name} must be 'log' or 'linear', but got {self.scale!r}"
            )
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise EvidenceError(
                f"`low <= high` must hold for {self.name}, but got {self.low} > {self.high}"
            )
        if self.scale == "log" and self.low is not None and not self.low > 0:
            raise EvidenceError(
                f"low of {self.name} must be above 0 on a log scale, but got {self.low}"
            )


@dataclass(frozen=True)
class TrainingObservation:
    """One trial: a training run with its settings, global batch size and seed.

    ``state`` is "reached", "censored" (the budget ended first), "diverged" or "pruned".
    ``epochs`` counts the epochs to the target if ``state`` is "reached", otherwise the epochs until the trial ended.
    The target was reached in (epochs - resolution_epochs, epochs], between two evaluations.
    If the question is about a fixed budget, "reached" means that the trial trained to the end of the budget, and
    ``epochs`` is its shortfall at the end (:meth:`trainers.job.Question.need`), or a lower bound on that shortfall if
    the run was stopped.
    Runs at one batch size with the same ``seed`` share initial weights and sample order; ``seed`` is None if unknown.
    """

    global_batch_size: int
    state: str
    epochs: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    resolution_epochs: float = 0.0
    gradient_noise_scale: float | None = None

    def __post_init__(self) -> None:
        _positive("global_batch_size", self.global_batch_size)
        if self.state not in STATES:
            raise EvidenceError(f"state must be one of {', '.join(STATES)}, but got {self.state!r}")
        if self.state == "reached":
            _positive("epochs to the target of a reached trial", self.epochs)
        elif not (math.isfinite(self.epochs) and self.epochs >= 0):
            raise EvidenceError(f"epochs must be 0 or more, but got {self.epochs}")
        if not (math.isfinite(self.resolution_epochs) and self.resolution_epochs >= 0):
            raise EvidenceError(
                f"resolution_epochs must be 0 or more, but got {self.resolution_epochs}"
            )


@dataclass(frozen=True)
class AggregateRow:
    """One row of a table: the mean epochs to target over ``runs`` runs of one tuned configuration.

    ``sd`` is the standard deviation of single runs, in the unit of ``epochs_to_target``; None if unknown.
    """

    global_batch_size: int
    epochs_to_target: float
    runs: int | None = None
    sd: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _positive("global_batch_size", self.global_batch_size)
        _positive("epochs_to_target", self.epochs_to_target)
        if self.runs is not None and self.runs < 1:
            raise EvidenceError(f"runs must be 1 or more, but got {self.runs}")
        if self.sd is not None and not (math.isfinite(self.sd) and self.sd >= 0):
            raise EvidenceError(f"sd must be 0 or more, but got {self.sd}")


@dataclass(frozen=True)
class Evidence:
    """Everything that a forecast is based on: at least one trial or table row, or both.

    ``tuned`` lists the numeric settings that were tuned at every rung (role ``scaled``) and are to be extrapolated.
    ``question`` is set if the evidence shows how good runs get within a fixed budget; it is None if the evidence shows
    how soon they reach their target.
    ``full_scale`` holds the model size and training length of the forecast, by the names of settings that every trial
    and row has; it is empty if they never differ. ``carried`` lists the sizes over which the parametrization transfers
    the learning rate.
    """

    observations: Sequence[TrainingObservation] = ()
    aggregates: Sequence[AggregateRow] = ()
    samples_per_epoch: float | None = None
    tuned: Sequence[ScaledSetting] = ()
    question: Question | None = None
    full_scale: Mapping[str, float] = field(default_factory=dict)
    carried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.observations and not self.aggregates:
            raise EvidenceError(
                "evidence must hold at least one trial or table row, but got none; "
                "run a sweep first"
            )
        if self.question is not None and not self.question.fixed:
            raise EvidenceError(
                "evidence must ask for the best within a fixed budget, but got another question"
            )
        for name in self.full_scale:
            for settings in self.settings:
                value = settings.get(name)
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise EvidenceError(
                        f"{name} at full scale must be given as a number for every training, "
                        f"but got {value!r}"
                    )
                _positive(name, value)
        names = [setting.name for setting in self.tuned]
        if both := sorted(self.full_scale.keys() & set(names)):
            raise EvidenceError(
                f"{both[0]} must be a full-scale size or a tuned setting, but got both; drop one"
            )
        if len(names) != len(set(names)):
            raise EvidenceError(
                f"each tuned setting must be named only once, but got {', '.join(names)}"
            )

    @property
    def batches(self) -> list[int]:
        """The distinct global batch sizes seen, in increasing order."""
        return sorted(
            {trial.global_batch_size for trial in self.observations}
            | {row.global_batch_size for row in self.aggregates}
        )

    @property
    def settings(self) -> list[Mapping[str, Any]]:
        """The settings of every trial, then of every row."""
        return [
            *(trial.settings for trial in self.observations),
            *(row.settings for row in self.aggregates),
        ]

    def setting_values(self, name: str) -> list[float]:
        """Return every value of a numeric setting in the evidence, trials first; missing values are left out."""
        return [float(item[name]) for item in self.settings if item.get(name) is not None]


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise EvidenceError(f"{name} must be a finite number above 0, but got {value}")
