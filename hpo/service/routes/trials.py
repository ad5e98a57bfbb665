"""Trials of a study, and their convergence as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from numpy.typing import NDArray
from starlette.responses import StreamingResponse

from hpo.service.answers import CurvesAnswer, TrialAnswer, TrialsAnswer, trial_answer_values
from hpo.service.context import Reader, Shared, StudyName
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import BIGGEST_BATCH, BIGGEST_NUMBER, After, Limit, error_responses
from hpo.service.study_facts import study_facts
from storage.records import Convergence, TrialState
from storage.store import Store
from trainers.json_text import json_bytes

router = APIRouter(prefix="/studies/{name}", tags=["trials"])

Column = Literal[
    "step",
    "samples",
    "epochs",
    "seconds",
    "train_loss",
    "loss",
    "metric",
    "learning_rate",
    "global_batch_size",
    "gradient_noise_scale",
]
Number = Annotated[
    int, Path(ge=0, le=BIGGEST_NUMBER, description="The trial's number in its study, from 0.")
]
Order = Literal[
    "number",
    "global_batch_size",
    "epochs_to_target",
    "epochs",
    "seconds",
    "best_metric",
    "finished_at",
]
SHOWN: tuple[Column, ...] = ("step", "epochs", "seconds", "train_loss", "loss", "metric")
"""Default horizontal axis of a curve."""
PART = 50_000
"""Maximum number of points that a response reads and holds at a time, about 30 MB; more are sent in parts."""


@router.get(
    "/trials", response_model=TrialsAnswer, summary="List trials", responses=error_responses(404)
)
def trials(
    who: Reader,
    context: Shared,
    name: StudyName,
    after: After = None,
    limit: Limit = 100,
    state: Annotated[list[TrialState] | None, Query(max_length=10)] = None,
    global_batch_size: Annotated[int | None, Query(ge=1, le=BIGGEST_BATCH)] = None,
    order: Annotated[Order, Query(description="Sort key of the page.")] = "number",
    descending: bool = False,
) -> Response:
    """Return a page of the study's trials with all their settings."""
    study = context.read_study(who, name)
    page = context.open_store().page_trials(
        study.id,
        after=after,
        limit=limit,
        states=state or None,
        global_batch_size=global_batch_size,
        order=order,
        descending=descending,
    )
    sizes_of = study_facts(study.spec).sizes_of
    return json_reply(
        {
            "trials": [trial_answer_values(trial, sizes_of(trial.settings)) for trial in page],
            "next": page[-1].number if len(page) == limit else None,
        }
    )


@router.get(
    "/trials/{number}",
    response_model=TrialAnswer,
    summary="Show a trial",
    responses=error_responses(404),
)
def trial(who: Reader, context: Shared, name: StudyName, number: Number) -> Response:
    """Return one trial with its settings and how it ended."""
    study = context.read_study(who, name)
    found = context.open_store().trial(study.id, number)
    return json_reply(trial_answer_values(found, study_facts(study.spec).sizes_of(found.settings)))


@router.get(
    "/convergence",
    response_model=CurvesAnswer,
    summary="Show the convergence of trials",
    responses=error_responses(404),
)
def convergence(
    who: Reader,
    context: Shared,
    name: StudyName,
    trial: Annotated[
        list[Annotated[int, Path(ge=0, le=BIGGEST_NUMBER)]],
        Query(min_length=1, max_length=1_000, description="Trial numbers."),
    ],
    column: Annotated[list[Column] | None, Query(max_length=20)] = None,
    max_points: Annotated[
        int | None,
        Query(
            ge=2,
            le=100_000,
            description="Thin out longer curves to this many points, ends included.",
        ),
    ] = None,
) -> Response:
    """Return the points of each trial as columns of equal length, ready to plot; they are empty if it has no points."""
    study = context.read_study(who, name)
    numbers, most = list(dict.fromkeys(trial)), context.config.limits.curves
    if len(numbers) > most:
        raise RefusedError(
            422,
            f"at most {most} trials may be requested at once, but got {len(numbers)}",
            way_out="use several requests",
        )
    store = context.open_store()
    ids = store.trial_ids(study.id, numbers)
    missing = [number for number in numbers if number not in ids]
    if missing:
        raise RefusedError(404, f"study {study.name!r} has no trial {missing[0]}")
    columns = list(dict.fromkeys(column or SHOWN))
    counts = store.point_counts(list(ids.values()))
    parts = [
        _curves(store, {number: ids[number] for number in part}, columns, max_points)
        for part in _parts(numbers, [counts.get(ids[number], 0) for number in numbers])
    ]
    if len(parts) == 1:
        return json_reply({"curves": parts[0]()})
    return StreamingResponse(_document(parts), media_type="application/json")


def _parts(numbers: Sequence[int], counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of trials in parts, in order, each with at most ``PART`` points or with a single trial."""
    part, points = list[int](), 0
    for number, count in zip(numbers, counts, strict=True):
        if part and points + count > PART:
            yield part
            part, points = [], 0
        part.append(number)
        points += count
    yield part


def _curves(
    store: Store, ids: Mapping[int, int], columns: list[Column], most: int | None
) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that reads the curves of these trials, which are given by number, with their ids."""

    def read() -> list[dict[str, Any]]:
        points = store.convergence(list(ids.values()))
        return [_curve(number, points.of(each), columns, most) for number, each in ids.items()]

    return read


def _document(parts: Sequence[Callable[[], list[dict[str, Any]]]]) -> Iterator[bytes]:
    """Yield the response part by part, so that the memory holds one part at a time."""
    yield b'{"curves":'
    for number, part in enumerate(parts):
        yield (b"," if number else b"[") + json_bytes(part())[1:-1]
    yield b"]}"


def _curve(
    number: int, points: Convergence, columns: list[Column], most: int | None
) -> dict[str, Any]:
    kept = slice(None) if most is None or len(points) <= most else _thinned(len(points), most)
    return {
        "trial": number,
        "points": len(points),
        "columns": {name: getattr(points, name)[kept].tolist() for name in columns},
    }


def _thinned(count: int, most: int) -> NDArray[np.int64]:
    """Return ``most`` of ``count`` indices, evenly spaced, first and last included."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
