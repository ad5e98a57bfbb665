"""The values that the store takes and returns: frozen dataclasses, one for each kind of record.

A caller passes a ``New...`` record; the stored record adds the id and the time. Times are timezone-aware, in UTC.
Epochs are samples processed divided by the data-set size; seconds are wall-clock time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from storage.errors import InvalidRecord
from storage.figures import (
    BYTES_OF_A_POINT,
    END_FIGURES,
    OUTCOME_FIGURES,
    Convergence,
    ConvergencePoint,
    TrialFigures,
    fault_of_measures,
    figures_fault,
)
from storage.service_records import (
    Event,
    NewThroughput,
    NewToken,
    Throughput,
    Token,
    Totals,
    Usage,
    WorkerBeat,
    WorkerRecord,
    WorkloadCost,
)

__all__ = [
    "BYTES_OF_A_POINT",
    "CalibrationRow",
    "Convergence",
    "ConvergencePoint",
    "Event",
    "Law",
    "Lease",
    "NewForecast",
    "NewOutcome",
    "NewPlan",
    "NewThroughput",
    "NewToken",
    "NewTrial",
    "Outcome",
    "PlanKind",
    "SettingForecast",
    "StoredForecast",
    "StoredPlan",
    "Study",
    "StudyState",
    "StudySummary",
    "SubmittedStudy",
    "Throughput",
    "Token",
    "Totals",
    "Trial",
    "TrialLease",
    "TrialResult",
    "TrialState",
    "Trust",
    "Usage",
    "WorkerBeat",
    "WorkerRecord",
    "WorkloadCost",
    "settings_key",
    "training_key",
]


class StudyState(StrEnum):
    """The state of a study."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


class TrialState(StrEnum):
    """The state of a trial, including how it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    REACHED = "reached"  # the target was reached
    CENSORED = "censored"  # the budget ended before the target was reached
    DIVERGED = "diverged"  # the loss diverged
    PRUNED = "pruned"  # stopped early, because it was worse than others
    FAILED = "failed"  # crashed, which says nothing about the settings

    @property
    def finished(self) -> bool:
        """Whether the trial has ended, for whatever reason."""
        return self not in (TrialState.QUEUED, TrialState.RUNNING)


class TrialPurpose(StrEnum):
    """The purpose for which a trial was trained."""

    SWEEP = "sweep"  # the study's budget of trials, on its ladder
    RACE = "race"  # at the full-scale batch itself, to compare the best few settings
    IMPORTED = "imported"  # trained elsewhere; counts as evidence, but not towards the budget
    OUTCOME = "outcome"  # the run of a plan, shown as a trial but not stored as one


TRAINED_BY_THE_STUDY = (TrialPurpose.SWEEP, TrialPurpose.RACE)


class Trust(StrEnum):
    """How far a forecast can be trusted."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class PlanKind(StrEnum):
    """The source of a plan's settings: a forecast, a baseline to compare it with, or an imported run."""

    FORECAST = "forecast"
    LINEAR_SCALING = (
        "linear_scaling"  # the best swept settings, learning rate proportional to the batch
    )
    NO_SCALING = "no_scaling"  # the best swept settings, unchanged
    IMPORTED = "imported"  # a run that others planned, read from their published results
    SQRT_SCALING = "sqrt_scaling"  # the best swept settings, learning rate proportional to the square root of the batch


@dataclass(frozen=True, kw_only=True)
class Study:
    """One sweep and everything derived from it; ``spec`` is the study file's YAML text, unchanged.

    ``folder`` is the absolute path of the study file's folder, on the machine where the study was created. The study's
    own modules, and data with relative paths, are looked up there. It is empty for a study that was submitted over the
    network, because its sender cannot name a folder on the server.

    ``budget_trials`` is the number of trials in its budget, None if unknown.

    ``queued_at`` is when it was last put in the queue, None for a study that its own process runs. ``attempts`` counts
    the claims since then. A study that is running without a lease is run by a process outside the queue, or by clients
    that ask for its trials: no worker claims a study that is ``for_agents``.
    """

    id: int
    name: str
    state: StudyState
    workload: str
    metric: str
    threshold: float
    higher_is_better: bool
    spec: str
    created_at: datetime
    updated_at: datetime
    message: str
    folder: str = ""
    owner: str = ""
    priority: int = 0
    max_samples: int | None = None
    max_accelerator_hours: float | None = None
    queued_at: datetime | None = None
    cancel_requested: bool = False
    lease_worker: str | None = None
    lease_expires_at: datetime | None = None
    attempts: int = 0
    budget_trials: int | None = None
    for_agents: bool = False


@dataclass(frozen=True, kw_only=True)
class SubmittedStudy:
    """A submitted study; ``created`` is False if the same submission was already received earlier."""

    study: Study
    created: bool


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A worker's claim on a study until ``expires_at``, to be renewed before then; see ``storage.statements.queue``.

    ``study`` is the study as it was when the lease was taken or last renewed; ``taken_over`` says whether a previous
    worker held it and stopped responding.
    """

    study: Study
    worker: str
    generation: int
    expires_at: datetime
    taken_over: bool


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study with a summary of its trials: counts by state, the fewest epochs to target, and the samples processed.

    ``best_metric`` is the best one of a trial that used up its budget.
    """

    study: Study
    trials: Mapping[TrialState, int]
    best_epochs_to_target: float | None
    best_metric: float | None
    samples: int


@dataclass(frozen=True, kw_only=True)
class NewStudy:
    """A study to be created or submitted; the later fields describe the submission.

    ``threshold`` is the target value of ``metric``, ``spec`` the text of the study file, and ``folder`` that file's
    folder. ``budget_trials`` is the number of trials in its budget; ``max_samples`` and ``max_accelerator_hours`` limit
    its usage. Among its owner's studies, a study with a higher ``priority`` goes first; a priority above 10 ranks it
    before the studies of all owners. No worker claims a study that is ``for_agents``.
    """

    name: str
    workload: str
    metric: str
    threshold: float
    higher_is_better: bool
    spec: str
    folder: str = ""
    budget_trials: int | None = None
    owner: str = ""
    priority: int = 0
    idempotency_key: str | None = None
    max_samples: int | None = None
    max_accelerator_hours: float | None = None
    for_agents: bool = False


@dataclass(frozen=True, kw_only=True)
class NewTrial:
    """A trial to be trained; ``settings`` holds every setting by name (``TrainingSettings.to_dict()``).

    ``purpose`` is one of :class:`TrialPurpose`.
    """

    global_batch_size: int
    seed: int
    settings: Mapping[str, Any]
    purpose: str = TrialPurpose.SWEEP


@dataclass(frozen=True, kw_only=True)
class TrialResult(TrialFigures):
    """How a trial ended; ``epochs_to_target`` is given if and only if ``state`` is reached.

    ``measures`` holds the metrics of its last evaluation other than the target's, by name.
    """

    state: TrialState
    reason: str = ""
    measures: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        _check_ending(self.state, self.epochs_to_target)
        if fault := figures_fault(END_FIGURES, self) or fault_of_measures(self.measures):
            raise InvalidRecord(f"the end of the trial: {fault}")


@dataclass(frozen=True, kw_only=True)
class Trial(TrialFigures):
    """One training run of one recipe at one global batch size with one seed; ``number`` counts from 0.

    ``measures`` holds the metrics of its last evaluation other than the target's, None if they were not reported.
    """

    id: int
    study_id: int
    number: int
    state: TrialState
    global_batch_size: int
    seed: int
    settings: Mapping[str, Any]
    purpose: str
    reason: str
    started_at: datetime | None
    finished_at: datetime | None
    samples: int | None = None  # samples processed, once the trial has ended
    measures: Mapping[str, float] | None = None

    @cached_property
    def settings_key(self) -> str:
        """The key of the trial's settings, from the function :func:`settings_key`."""
        return settings_key(self.settings)


def settings_key(settings: Mapping[str, Any]) -> str:
    """Return the settings as one string that is the same for equal settings, however they are represented.

    User-defined settings may be grouped under ``own``, as in a new trial, or stand next to the others, as in a stored
    one. An int equals the float of the same value, a list equals a tuple, and null equals a missing setting.
    """
    flat = {**settings, **settings.get("own", {})}
    return repr(
        sorted(
            (name, _one_way(value))
            for name, value in flat.items()
            if name != "own" and value is not None
        )
    )


def training_key(trial: Trial | NewTrial) -> tuple[int, int, str] | None:
    """Return batch size, seed and settings: a study trains and counts each such combination only once.

    Return None for a trial that the study did not train itself, because imported runs and outcomes of plans always
    count separately.
    """
    if trial.purpose not in TRAINED_BY_THE_STUDY:
        return None
    key = trial.settings_key if isinstance(trial, Trial) else settings_key(trial.settings)
    return trial.global_batch_size, trial.seed, key


def _one_way(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_one_way(each) for each in value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, kw_only=True)
class TrialLease:
    """A leased trial, with the key that authorizes its holder's writes; see ``storage.statements.trial_leases``.

    The lease lasts until ``expires_at``, ``seconds`` after its last renewal. ``vanished`` counts the holders that
    stopped responding while they held the trial.
    """

    trial: Trial
    key: str
    holder: str
    seconds: float
    expires_at: datetime
    vanished: int


@dataclass(frozen=True)
class Law:
    """A fitted parameter of a law, with its 90 % interval."""

    name: str
    parameter: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class SettingForecast:
    """The forecast value of one setting, with its 90 % interval."""

    name: str
    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class NewForecast:
    """Forecast settings and epochs to target at an untrained global batch size, each with a 90 % interval."""

    study_id: int
    global_batch_size: int
    epochs_median: float
    epochs_low: float
    epochs_high: float
    trust: Trust
    reason: str
    settings: tuple[SettingForecast, ...] = ()
    laws: tuple[Law, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredForecast(NewForecast):
    """A forecast record, as returned by the store."""

    id: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewPlan:
    """The complete settings of a run on a machine, with the expected results if there are any.

    A plan of kind ``forecast`` names its forecast and predicts the epochs; a baseline may lack both. ``directory``
    holds the launch script. ``micro_batch_size`` is None if no gradients are accumulated. If ``ranks_per_node`` is 0,
    it is replaced by workers divided by nodes, rounded up. ``slot_seconds`` is the time for which the machine is
    available, and ``chance_in_slot`` the probability of finishing within that time; ``limited_by`` says what limits the
    speed; ``details`` is JSON.
    """

    study_id: int
    forecast_id: int | None = None
    kind: PlanKind = PlanKind.FORECAST
    machine: str
    nodes: int
    workers: int
    global_batch_size: int
    local_batch_size: int
    micro_batch_size: int | None = None
    settings: Mapping[str, Any]
    epochs_median: float | None = None
    epochs_low: float | None = None
    epochs_high: float | None = None
    seconds_median: float | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    trust: Trust | None = None
    directory: str
    launcher: str = "local"
    ranks_per_node: int = 0
    slot_seconds: float | None = None
    chance_in_slot: float | None = None
    limited_by: str = ""
    details: str | None = None

    def __post_init__(self) -> None:
        if self.ranks_per_node == 0 and self.nodes > 0:
            object.__setattr__(self, "ranks_per_node", -(-self.workers // self.nodes))


@dataclass(frozen=True, kw_only=True)
class StoredPlan(NewPlan):
    """A plan record, as returned by the store."""

    id: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewOutcome:
    """The outcome of one launch of a plan; ``epochs_to_target`` is given if and only if ``state`` is reached.

    ``restarts`` counts how often the launch resumed from a checkpoint; ``source`` is the origin of an imported outcome.
    """

    plan_id: int
    seed: int
    backend: str
    workers: int
    state: TrialState
    epochs_to_target: float | None = None
    epochs: float
    seconds: float
    best_metric: float | None = None
    reason: str = ""
    restarts: int = 0
    nodes: int | None = None
    samples_per_second: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _check_ending(self.state, self.epochs_to_target)
        if fault := figures_fault(OUTCOME_FIGURES, self):
            raise InvalidRecord(f"the outcome of plan {self.plan_id}: {fault}")


@dataclass(frozen=True, kw_only=True)
class Outcome(NewOutcome):
    """The stored outcome of a plan's full-machine run."""

    id: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class CalibrationRow:
    """A plan's prediction and the means of its outcomes.

    ``runs`` counts the outcomes, and ``reached`` those that reached the target; the observed means cover only the
    latter. ``inside`` says whether the runs' mean epochs to target lie in the predicted interval; it is None if that is
    unknown (nothing was predicted, every run crashed, or the budget ended too early to tell). ``inside_seconds`` says
    the same about the mean seconds of the runs that reached the target.
    """

    plan_id: int
    study: str
    kind: PlanKind
    trust: Trust | None
    machine: str
    global_batch_size: int
    predicted_epochs_median: float | None
    predicted_epochs_low: float | None
    predicted_epochs_high: float | None
    observed_epochs_mean: float | None
    runs: int
    reached: int
    inside: bool | None
    predicted_seconds_median: float | None
    predicted_seconds_low: float | None
    predicted_seconds_high: float | None
    observed_seconds_mean: float | None
    inside_seconds: bool | None = None


def _check_ending(state: TrialState, epochs_to_target: float | None) -> None:
    if not TrialState(state).finished:
        raise InvalidRecord(f"a result needs a final state, but got {str(state)!r}")
    if (state == TrialState.REACHED) != (epochs_to_target is not None):
        raise InvalidRecord(
            "epochs_to_target must be given if and only if the state is 'reached', but got "
            f"state {str(state)!r} and epochs_to_target {epochs_to_target}"
        )
