"""Response models of the API: the OpenAPI document describes them, and the client's types mirror them.

Times are ISO 8601 in UTC; unmeasured values are null; epochs are training samples divided by the
size of the training set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from hpo.runs.results import target_values
from storage.figures import TRIAL_FIELDS
from storage.records import StudyState, StudySummary, Trial, TrialState

Described = TypeVar("Described", bound="Answer")


class Answer(BaseModel):
    """Base class of the JSON documents in the server's responses."""

    model_config = ConfigDict(extra="forbid")


class FaultAnswer(Answer):
    """One error in a study file or a request."""

    message: str
    line: int | None = Field(description="Line of the study file, from 1.")
    key: str | None = Field(description="Dotted key, such as budget.trials.")


class ErrorBody(Answer):
    """An error, and how to resolve it."""

    kind: str = Field(examples=["not_found"])
    message: str = Field(examples=["there is no study 'digit'; did you mean 'digits'?"])
    way_out: str | None = None
    faults: list[FaultAnswer] | None = None


class ErrorAnswer(Answer):
    """The body of every error response."""

    error: ErrorBody


class TargetAnswer(Answer):
    """Metric and threshold that a trial must reach; null if the study asks for the best metric within a budget."""

    metric: str = Field(examples=["top1"])
    threshold: float | None = Field(examples=[0.96])
    higher_is_better: bool


class StudyAnswer(Answer):
    """A study: its owner, state and progress."""

    name: str = Field(examples=["digits"])
    state: StudyState
    owner: str
    priority: int
    workload: str = Field(examples=["resnet"])
    target: TargetAnswer
    message: str
    created_at: datetime
    updated_at: datetime
    cancel_requested: bool
    worker: str | None = Field(description="Worker that is running the study.")
    lease_expires_at: datetime | None
    attempts: int = Field(description="How many times a worker has started the study.")
    for_agents: bool = Field(
        description="Whether clients that ask for trials train them, so that no worker runs the "
        "study."
    )
    budget_trials: int | None = Field(
        description="Trials that the study file requests; null if the search stops by itself."
    )
    max_samples: int | None = Field(description="Budget over all trials, in training samples.")
    max_accelerator_hours: float | None
    trials: dict[str, int] = Field(
        description="Number of trials by state.", examples=[{"reached": 31, "pruned": 9}]
    )
    best_epochs_to_target: float | None = Field(
        description="Fewest epochs in which a trial reached the target."
    )
    best_metric: float | None = Field(
        description="Best metric of a trial that trained to the end of its budget; null if the "
        "study asks how soon a target is reached."
    )
    samples: int = Field(description="Training samples that the study's trials have used.")


class StudiesAnswer(Answer):
    """A page of studies."""

    studies: list[StudyAnswer]
    next: int | None = Field(
        description="Pass it as `after` to get the next page; null on the last page."
    )


class UsageAnswer(Answer):
    """Total resources that the trials of a study have used."""

    samples: int
    accelerator_seconds: float
    trials: int


class SizesRungAnswer(Answer):
    """The trials at one batch size and one combination of sizes."""

    sizes: dict[str, int] = Field(
        description="Model and training sizes.", examples=[{"width": 64, "samples": 8192}]
    )
    trials: dict[str, int]


class RungAnswer(Answer):
    """The trials at one batch size."""

    global_batch_size: int
    trials: dict[str, int] = Field(description="Number of trials of all sizes, by state.")
    by_sizes: list[SizesRungAnswer] = Field(
        description="The trials of each combination of width, depth and samples, cheapest "
        "first; empty if only the batch size grows."
    )


class StudyDetail(StudyAnswer):
    """A study with its file and its rungs."""

    spec: str = Field(description="The study file as it was submitted.")
    ladder: list[int]
    sizes: dict[str, list[int]] = Field(
        description="What grows besides the batch size: width, depth, samples; empty if only "
        "the batch size grows.",
        examples=[{"width": [32, 64], "samples": [2048, 8192]}],
    )
    full_scale: dict[str, Any] | None
    usage: UsageAnswer
    rungs: list[RungAnswer]


def _with_trial_figures(answer: type[Described]) -> type[Described]:
    """Add a field to the answer for each field of :class:`storage.figures.TrialFigures`."""
    figures: dict[str, Any] = {
        each.name: (
            (int if each.whole else float) | None,
            Field(description=f"{each.title}{f', in {each.unit}' if each.unit else ''}."),
        )
        for each in TRIAL_FIELDS
    }
    return create_model(
        answer.__name__, __base__=answer, __doc__=answer.__doc__, __module__=__name__, **figures
    )


@_with_trial_figures
class TrialAnswer(Answer):
    """One training run of one configuration at one global batch size with one seed."""

    number: int
    state: TrialState
    global_batch_size: int = Field(description="Samples per update over all workers.")
    sizes: dict[str, int] = Field(
        description="Width, depth and samples of its rung; empty if only the batch size grows.",
        examples=[{"width": 64, "samples": 8192}],
    )
    seed: int
    purpose: str
    settings: dict[str, Any] = Field(
        description="All settings by name, in the units of docs/reference/settings.md."
    )
    reason: str
    measures: dict[str, float] | None = Field(
        description="Metrics other than the target metric at the last evaluation, by name."
    )
    started_at: datetime | None
    finished_at: datetime | None


class AskAnswer(Answer):
    """The answer to a request for a trial: a job to train, a time to ask again, or a note that no trial is left."""

    trial: TrialAnswer | None
    job: dict[str, Any] | None = Field(
        description="Everything that defines the training run, in the form that "
        "`trainers.job.TrainingJob` reads."
    )
    ended: bool = Field(description="Whether nothing is left to train.")
    wait_seconds: float = Field(
        description="Seconds after which to ask again, if the remaining trials depend on "
        "running ones."
    )
    message: str


class VerdictAnswer(Answer):
    """The answer to a report."""

    state: TrialState = Field(
        description="`running`: continue. `pruned`: stop, because other trials are better. "
        "`queued`: stop, because another client will continue the trial."
    )
    reason: str


class TrialsAnswer(Answer):
    """A page of trials."""

    trials: list[TrialAnswer]
    next: int | None = Field(
        description="Pass it as `after` to get the next page; null on the last page."
    )


class CurveAnswer(Answer):
    """The convergence of one trial, as columns of equal length."""

    trial: int
    points: int = Field(
        description="Number of stored points; the columns may hold fewer, see max_points."
    )
    columns: dict[str, list[float | None]]


class CurvesAnswer(Answer):
    """The convergence of several trials."""

    curves: list[CurveAnswer]


class EventAnswer(Answer):
    """An event of a study or of the server."""

    id: int
    study: str | None
    at: datetime
    kind: str
    message: str
    data: Any


class EventsAnswer(Answer):
    """A page of events, oldest first."""

    events: list[EventAnswer]
    next: int | None


_OF_THE_RECORD = tuple(
    name for name in TrialAnswer.model_fields if name not in ("settings", "sizes")
)


def trial_answer_values(
    trial: Trial, sizes: Mapping[str, int], *, with_settings: bool = True
) -> dict[str, Any]:
    """Return the fields of :class:`TrialAnswer` for a trial of these sizes, without validating them again."""
    values = {name: getattr(trial, name) for name in _OF_THE_RECORD}
    values["sizes"] = dict(sizes)
    if with_settings:
        values["settings"] = trial.settings
    return values


def study_answer_values(summary: StudySummary, samples: int) -> dict[str, Any]:
    """Return the fields of :class:`StudyAnswer` for a study; ``samples`` is what its trials have used."""
    study, target = summary.study, target_values(summary.study)
    return {
        "name": study.name,
        "state": study.state,
        "owner": study.owner,
        "priority": study.priority,
        "workload": study.workload,
        "target": target,
        "message": study.message,
        "created_at": study.created_at,
        "updated_at": study.updated_at,
        "cancel_requested": study.cancel_requested,
        "worker": study.lease_worker,
        "lease_expires_at": study.lease_expires_at,
        "attempts": study.attempts,
        "budget_trials": study.budget_trials,
        "for_agents": study.for_agents,
        "max_samples": study.max_samples,
        "max_accelerator_hours": study.max_accelerator_hours,
        "trials": {str(state): count for state, count in summary.trials.items()},
        "best_epochs_to_target": summary.best_epochs_to_target,
        "best_metric": summary.best_metric if target["threshold"] is None else None,
        "samples": samples,
    }


def plain_record(record: Any) -> dict[str, Any]:
    """Return a stored record as a dict of plain values by field name."""
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
