"""Ask and tell: clients on any machine ask for trials, train them and report the results.

Every call is idempotent and may be repeated: the key that the client generates for each trial identifies its calls
and shuts out an earlier holder of the trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hpo.errors import FigureError, TrialLostError, TuningError
from hpo.runs.ask_tell_study import AskTellStudy
from hpo.service.answers import AskAnswer, TrialAnswer, VerdictAnswer, trial_answer_values
from hpo.service.auth import TokenHolder
from hpo.service.context import ServerContext, Shared, StudyName, Submitter
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import BIGGEST_BATCH, check_printable, error_responses
from hpo.service.routes.trials import Number
from hpo.service.study_facts import study_facts
from storage.figures import (
    BYTES_OF_A_POINT,
    LEAST,
    LONGEST_MEASURE,
    MOST,
    MOST_AMOUNT,
    MOST_BYTES,
    MOST_MEASURES,
    MOST_SAMPLES,
)
from storage.records import Trial
from trainers.report import ConvergencePoint, TrainingOutcome

router = APIRouter(prefix="/studies/{name}/trials", tags=["trials"])

Measured = Annotated[float | None, Field(description="Null if the value is not a finite number.")]
Key = Annotated[
    str,
    Field(
        min_length=16,
        max_length=64,
        pattern=r"^[0-9A-Za-z_-]+$",
        description="A secret string that the client chooses for this one trial, such as a UUID.",
        examples=["5f0c1a6e9b3d4c7f8a2e6d1b0c9f8e7d"],
    ),
]
MeasureName = Annotated[
    str, Field(min_length=1, max_length=LONGEST_MEASURE), AfterValidator(check_printable)
]
LeaseSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=86_400,
        description="Lease time: the trial is given to another client after this long without "
        "a heartbeat.",
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AskBody(_Body):
    """A request for a trial."""

    key: Key
    holder: str = Field("", max_length=200, description="Name of the client, for display.")
    lease_seconds: LeaseSeconds = 60.0


class PointBody(_Body):
    """One evaluation of a training run."""

    step: int = Field(ge=1, le=MOST, description="Updates so far.")
    samples: int = Field(ge=0, le=MOST_SAMPLES, description="Training samples so far.")
    epochs: float = Field(ge=0, le=MOST)
    seconds: float = Field(ge=0, le=MOST)
    metric: Measured = None
    loss: Measured = None
    train_loss: Measured = None
    learning_rate: float = Field(
        ge=0, le=MOST_AMOUNT, description="Learning rate of the last update."
    )
    global_batch_size: int = Field(ge=1, le=BIGGEST_BATCH)
    gradient_noise_scale: float | None = None


class ReportBody(_Body):
    """Evaluations of a running trial; a report without any is a heartbeat."""

    key: Key
    points: list[PointBody] = Field(default_factory=list, max_length=10_000)
    lease_seconds: LeaseSeconds = 60.0


class OutcomeBody(_Body):
    """How a training run ended, as reported by its trainer."""

    state: Literal["reached", "censored", "diverged"]
    epochs_to_target: float | None = Field(None, ge=LEAST, le=MOST)
    epochs: float = Field(ge=0, le=MOST)
    steps: int = Field(ge=0, le=MOST)
    seconds: float = Field(ge=0, le=MOST)
    best_metric: Measured = None
    final_metric: Measured = None
    reason: str = Field("", max_length=10_000)
    memory_bytes: int | None = Field(None, ge=0, le=MOST_BYTES, description="Peak memory.")
    micro_batch_size: int | None = Field(None, ge=1, le=BIGGEST_BATCH)
    measures: dict[MeasureName, float] = Field(
        default_factory=dict,
        max_length=MOST_MEASURES,
        description="The other metrics at the last evaluation, by name.",
    )


class EndBody(_Body):
    """The end of a trial: a trainer's outcome or a state; by default, inferred from the points and the target."""

    key: Key
    points: list[PointBody] = Field(default_factory=list, max_length=10_000)
    outcome: OutcomeBody | None = None
    state: Literal["censored", "diverged", "failed"] | None = None
    reason: str = Field("", max_length=10_000)


class ReleaseBody(_Body):
    """A request to give a trial back."""

    key: Key


@router.post(
    "",
    status_code=201,
    response_model=AskAnswer,
    summary="Ask for a trial",
    responses={
        200: {
            "model": AskAnswer,
            "description": "No trial is available now; the response says why.",
        },
        **error_responses(404, 409),
    },
)
def ask(who: Submitter, context: Shared, name: StudyName, body: AskBody) -> Response:
    """Return the next trial of the study, under a lease: report while it trains, then end it or give it back.

    After the first request, only clients that ask for trials train the study, and no worker runs it. The same
    key always returns the same trial.
    """
    asked = _tried(
        lambda: _study(context, who, name).ask(body.key, body.holder, body.lease_seconds)
    )
    trial = None
    if asked.number is not None:
        store = context.open_store()
        study = store.study(name)
        trial = _values(context, name, store.trial(study.id, asked.number))
    document = {
        "trial": trial,
        "job": None if asked.job is None else asked.job.to_dict(),
        "ended": asked.ended,
        "wait_seconds": asked.wait_seconds,
        "message": asked.message,
    }
    return json_reply(document, status=200 if trial is None else 201)


@router.post(
    "/{number}/points",
    response_model=VerdictAnswer,
    summary="Report on a trial",
    responses=error_responses(404, 409),
)
def report(
    who: Submitter, context: Shared, name: StudyName, number: Number, body: ReportBody
) -> Response:
    """Store evaluations and renew the lease; the response says whether to continue."""
    points = [_point(each) for each in body.points]
    verdict = _tried(
        lambda: _study(context, who, name, points).report(
            number, body.key, points, body.lease_seconds
        )
    )
    return json_reply({"state": verdict.state, "reason": verdict.reason})


@router.post(
    "/{number}/end",
    response_model=TrialAnswer,
    summary="End a trial",
    responses=error_responses(404, 409),
)
def end(
    who: Submitter, context: Shared, name: StudyName, number: Number, body: EndBody
) -> Response:
    """Store the last evaluations and how the trial ended. The first reported outcome counts."""
    outcome = None if body.outcome is None else _outcome(body.outcome)
    points = [_point(each) for each in body.points]
    ended = _tried(
        lambda: _study(context, who, name, points).end(
            number,
            body.key,
            points,
            outcome=outcome,
            state=body.state,
            reason=body.reason,
        )
    )
    return json_reply(_values(context, name, ended))


@router.post(
    "/{number}/release",
    response_model=TrialAnswer,
    summary="Give a trial back",
    responses=error_responses(404, 409),
)
def release(
    who: Submitter, context: Shared, name: StudyName, number: Number, body: ReleaseBody
) -> Response:
    """Put the trial back into the queue of its study, for another client; a finished trial is left unchanged."""
    released = _tried(lambda: _study(context, who, name).release(number, body.key))
    return json_reply(_values(context, name, released))


def _values(context: ServerContext, name: str, trial: Trial) -> dict[str, Any]:
    sizes_of = study_facts(context.open_store().study(name).spec).sizes_of
    return trial_answer_values(trial, sizes_of(trial.settings))


def _study(
    context: ServerContext, who: TokenHolder, name: str, points: Sequence[ConvergencePoint] = ()
) -> AskTellStudy:
    """Return the ask-and-tell study if the client may change it and its owner may store these additional points."""
    study = context.check_changeable(who, context.read_study(who, name))
    if points:
        context.check_stored(study.owner, BYTES_OF_A_POINT * len(points))
    return context.ask_tell_studies.of(study)


def _tried(call: Any) -> Any:
    try:
        return call()
    except TrialLostError as error:
        raise RefusedError(409, str(error), kind="trial_lost") from error
    except FigureError as error:
        raise RefusedError(422, str(error), kind="figure") from error
    except TuningError as error:
        raise RefusedError(409, str(error)) from error


def _point(body: PointBody) -> ConvergencePoint:
    values = body.model_dump()
    unknown = ("metric", "loss", "train_loss")
    return ConvergencePoint(
        **{**values, **{name: math.nan for name in unknown if values[name] is None}}
    )


def _outcome(body: OutcomeBody) -> TrainingOutcome:
    if (body.state == "reached") != (body.epochs_to_target is not None):
        raise RefusedError(
            422,
            "outcome.epochs_to_target must be given if and only if outcome.state is reached, "
            "but got "
            f"{body.state} and {body.epochs_to_target}",
        )
    return TrainingOutcome.from_dict(body.model_dump())
