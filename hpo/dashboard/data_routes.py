"""What the pages need beyond the API: figures of the report and the notebooks, all trials in columns, a trial's job."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from plotly import graph_objects as go
from starlette.responses import Response

from hpo import keeping
from hpo.dashboard import figures
from hpo.dashboard.access import Access
from hpo.errors import EvidenceError, PlanError, StudyNotFoundError
from hpo.extrapolation.posterior import Posterior
from hpo.forecasting import make_plan
from hpo.jobs import training_job
from hpo.planning.costs import cost_names
from hpo.planning.machines import machine_names
from hpo.planning.optimise import Objective
from hpo.results import StudyResult
from hpo.study import parse_study
from search_spaces.settings import TrainingSettings
from storage.records import Trial

Draw = Callable[[StudyResult, Posterior | None, str], go.Figure]

FIGURES: dict[str, Draw] = {
    "ladder": lambda result, posterior, _: figures.ladder(result, posterior),
    "setting": lambda result, posterior, name: figures.setting_against_batch(result, name, posterior),
    "response": lambda result, _, name: figures.response(result, name),
    "validation": lambda result, _, __: figures.validation(result),
}
MOST_BATCH = 10**8
COLUMNS = ("number", "state", "global_batch_size", "seed", "purpose", "epochs_to_target", "epochs", "seconds",
           "best_metric", "final_metric", "reason")


def data_routes(access: Access) -> APIRouter:
    """Routes under ``/api/v1`` for the pages alone; they are in no document and may change with the pages."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)
    reader = Depends(access.reader)

    @router.get("/figures/calibration")
    def calibration(request: Request, who: Any = reader) -> Response:
        return _figure(figures.calibration(access.calibration(request, who)))

    @router.get("/studies/{name}/figures/{key}")
    def figure(request: Request, name: str, key: str, who: Any = reader, setting: str = "") -> Response:
        study = access.study(request, who, name)
        if key not in FIGURES:
            raise StudyNotFoundError(f"there is no figure {key!r}; there are {', '.join(FIGURES)}")
        try:
            result: StudyResult
            posterior: Posterior | None
            result, posterior = access.laws(request, study)
        except EvidenceError:       # too little for a law; the trials are shown all the same
            store = access.store(request)
            result, posterior = keeping.read_result(store, study.name, store.url), None
        return _figure(FIGURES[key](result, posterior, setting))

    @router.get("/studies/{name}/preview")
    def preview(request: Request, name: str, at: Annotated[int, Query(ge=1, le=MOST_BATCH)],
                who: Any = reader,
                machine: str = "local", nodes: Annotated[int | None, Query(ge=1)] = None,
                minimise: Objective | None = None, slot_hours: Annotated[float | None, Query(gt=0)] = None,
                cost: str | None = None) -> Response:
        """A plan that is not kept: what a slider shows while it moves. The forecast stands even without a plan."""
        found = access.forecast(request, access.study(request, who, name), at)
        try:
            if machine not in machine_names():
                raise PlanError(f"machine must be one of {', '.join(machine_names())}, but got {machine!r}")
            plan = make_plan(found, machine, nodes, minimise=minimise, slot_hours=slot_hours, cost=_known_cost(cost))
            planned: dict[str, Any] = {"plan": plan.to_dict(), "refused": None}
        except PlanError as error:
            planned = {"plan": None, "refused": str(error)}
        return _json({"forecast": found.to_dict(), **planned})

    @router.get("/studies/{name}/columns")
    def columns(request: Request, name: str, who: Any = reader) -> Response:
        study = access.study(request, who, name)
        trials = access.store(request).trials(study.id)
        return _json(trial_columns(trials, parse_study(study.spec).search.names))

    @router.get("/studies/{name}/trials/{number}/job")
    def job(request: Request, name: str, number: int, who: Any = reader) -> Response:
        study = access.study(request, who, name)
        trial = access.store(request).trial(study.id, number)
        found = training_job(parse_study(study.spec), TrainingSettings.from_dict(trial.settings),
                             trial.global_batch_size, trial.seed)
        return _json(found.to_dict())

    return router


def trial_columns(trials: Sequence[Trial], tuned: Sequence[str]) -> dict[str, Any]:
    """All trials of a study as lists of one length: what a table of thousands is sorted and filtered by.

    ``columns`` holds what every trial has, ``settings`` the tuned ones by name; what was not measured is None.
    """
    return {"columns": {name: [_plain(getattr(trial, name)) for trial in trials] for name in COLUMNS},
            "settings": {name: [_plain(trial.settings[name]) for trial in trials] for name in tuned}}


def _known_cost(name: str | None) -> str | None:
    """A published cost by its name; a path from the network is none."""
    if not name:
        return None
    if name not in cost_names():
        raise PlanError(f"cost must be one of {', '.join(cost_names())}, but got {name!r}")
    return name


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(document: Any) -> Response:
    return Response(json.dumps(document, separators=(",", ":")), media_type="application/json")


def _figure(figure: go.Figure) -> Response:
    # the page gives the figure its heading, its colours and its width
    figure.update_layout(title_text=None, template=None, margin={"l": 60, "r": 16, "t": 16, "b": 50})
    return Response(figure.to_json(), media_type="application/json")
