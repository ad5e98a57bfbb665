"""Forecasts at any batch size, from the trials that a study has run so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field

from hpo.runs.repository import stored_spec
from hpo.runs.results import StudyForecast
from hpo.service.answers import Answer
from hpo.service.context import OwnSlot, Reader, Shared, StudyName
from hpo.service.refusal import RefusedError
from hpo.service.routes.common import BIGGEST_BATCH, error_responses
from hpo.service.study_facts import study_facts
from trainers.json_text import json_bytes

router = APIRouter(prefix="/studies/{name}", tags=["forecasts"])

MOST_BATCHES = 50


class IntervalAnswer(Answer):
    """A median with the ends of its 90 % interval."""

    median: float
    low: float
    high: float


class BestAnswer(IntervalAnswer):
    """The best metric after a fixed number of epochs: the median with the ends of its 90 % interval."""

    metric: str = Field(examples=["top1"])
    within: dict[str, float] = Field(examples=[{"epochs": 90}])


class ForecastAnswer(Answer):
    """The forecast at one batch size, as `hpo forecast --json` prints it."""

    model_config = ConfigDict(extra="allow")

    global_batch_size: int
    sizes: dict[str, int] = Field(
        default_factory=dict,
        description="Width, depth and samples of the full-scale run that is forecast; omitted "
        "if only the batch size grows.",
        examples=[{"width": 256, "samples": 32768}],
    )
    epochs_to_target: IntervalAnswer | None = Field(
        description="The mean of a few runs with these settings; null if the study asks for "
        "the best metric within a budget."
    )
    best: BestAnswer | None = Field(
        None, description="Best metric within the budget, if the study asks for that."
    )
    settings: dict[str, IntervalAnswer] = Field(description="`median` is the value to use.")
    trust: str = Field(examples=["medium"])
    reason: str
    laws: dict[str, dict[str, IntervalAnswer]]
    complete_settings: dict[str, Any] = Field(
        description="Every setting, including those that do not change."
    )


class ForecastsAnswer(Answer):
    """One forecast for each batch size, in the requested order."""

    forecasts: list[ForecastAnswer]


@router.get(
    "/forecast",
    response_model=ForecastsAnswer,
    summary="Forecast a batch size",
    responses=error_responses(404, 409),
)
async def forecast(
    who: Reader,
    context: Shared,
    slot: OwnSlot,
    name: StudyName,
    at: Annotated[
        list[Annotated[int, Field(ge=1, le=BIGGEST_BATCH)]] | None,
        Query(
            max_length=MOST_BATCHES,
            description="Global batch sizes; default: the study's full-scale batch size.",
            examples=[[32768]],
        ),
    ] = None,
    budget_epochs: Annotated[
        list[Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]] | None,
        Query(
            max_length=MOST_BATCHES,
            description="Also return the chance of reaching the target within this many epochs.",
        ),
    ] = None,
) -> Response:
    """Return settings and epochs to target with 90 % intervals, and a trust level.

    The first request after a trial has ended fits the laws again, which takes seconds; later ones return at once.
    """
    study = await run_sync(context.read_study, who, name)
    full = study_facts(study.spec).full_scale_batch
    batches = at or ([full] if full else [])
    if not batches:
        await run_sync(stored_spec, study)  # raises the reason if its file cannot be read here
        raise RefusedError(
            422,
            f"study {study.name!r} has no full_scale batch size",
            way_out="give one: ?at=32768",
        )
    budgets, store = tuple(budget_epochs or ()), context.open_store()
    of_page = batches == [full] and not budgets
    forecasts = context.forecasts

    def make() -> bytes:
        return _answer(forecasts.make(store, study, batches, budgets))

    if of_page:
        answer = await run_sync(forecasts.kept, store, study, "forecast")
    else:
        found = await run_sync(forecasts.remembered, store, study, batches, budgets)
        answer = None if found is None else _answer(found)
    if answer is None:
        context.check_computation(who)
        answer = await context.computations.run(
            who, slot, lambda: forecasts.kept(store, study, "forecast", make) if of_page else make()
        )
    return Response(answer, media_type="application/json")


class DesignAnswer(Answer):
    """A sweep design: training runs over the ladder up to some size, their cost, and the expected interval."""

    largest: dict[str, int] = Field(
        description="Largest batch size, width, depth and samples.",
        examples=[{"global_batch_size": 64, "width": 64, "samples": 8192}],
    )
    trainings: int
    cost: float = Field(description="Cost of these training runs, in full-scale training runs.")
    accelerator_hours: float | None = Field(
        description="Cost in hours of this study's accelerators; null if no training run was timed."
    )
    interval: IntervalAnswer = Field(
        description="Interval of the epochs to the target, or of the best metric, at full scale."
    )
    factor: float = Field(
        description="Ratio of the interval's ends, in epochs or in the metric's shortfall."
    )
    regret: float = Field(
        description="Expected fraction by which the chosen settings lengthen training at full "
        "scale."
    )
    own: bool = Field(description="Whether this is the current study's own design.")


class DesignsAnswer(Answer):
    """The possible designs of a study and their intervals, as `hpo design --json` prints them."""

    study: str
    answer: str = Field(description="The quantity that the intervals describe.", examples=["loss"])
    within_epochs: float | None = Field(
        description="The budget, if the study asks for the best metric within a budget."
    )
    full_scale: dict[str, int] = Field(
        description="Batch size and model sizes of the intervals.",
        examples=[{"global_batch_size": 128, "width": 256, "samples": 32768}],
    )
    designs: list[DesignAnswer] = Field(
        description="The study's own design, and every design with a narrower interval than "
        "all cheaper designs, cheapest first."
    )


@router.get(
    "/designs",
    response_model=DesignsAnswer,
    summary="Compare sweep designs",
    responses=error_responses(404, 409),
)
async def designs(who: Reader, context: Shared, slot: OwnSlot, name: StudyName) -> Response:
    """Return the cost and the full-scale interval of this sweep, and of smaller, shorter and longer sweeps.

    The first request after a trial has ended fits the laws again, which takes seconds; later ones return at once.
    """
    study = await run_sync(context.read_study, who, name)
    if study_facts(study.spec).full_scale_batch is None:
        await run_sync(stored_spec, study)
        raise RefusedError(
            422,
            f"study {study.name!r} has no full_scale batch size, so its interval there cannot "
            f"be forecast",
            way_out="resume it with full_scale: {global_batch_size: ...} in its file",
        )
    store, forecasts = context.open_store(), context.forecasts
    answer = await run_sync(forecasts.kept, store, study, "designs")
    if answer is None:
        context.check_computation(who)
        answer = await context.computations.run(
            who,
            slot,
            lambda: forecasts.kept(
                store,
                study,
                "designs",
                lambda: json_bytes(forecasts.designs(store, study).to_dict()),
            ),
        )
    return Response(answer, media_type="application/json")


def _answer(forecasts: Sequence[StudyForecast]) -> bytes:
    return json_bytes({"forecasts": [each.to_dict() for each in forecasts]})
