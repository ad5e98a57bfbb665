"""Routes for the pages beyond the API: the figures, all trials as columns, a trial's job, the report."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Query, Request
from plotly import graph_objects as go
from starlette.responses import Response

from hpo.dashboard import figures, style
from hpo.dashboard.access import PageAccess
from hpo.dashboard.columns import trial_columns
from hpo.dashboard.report import render_report
from hpo.dashboard.view import make_study_view
from hpo.errors import EvidenceError, ExportError, PlanError, StudyNotFoundError
from hpo.extrapolation.inference.posterior import Posterior
from hpo.planning.machines import machine_names
from hpo.planning.request import Objective
from hpo.planning.timing.costs import workload_cost_names
from hpo.runs.formatting import forecast_remarks
from hpo.runs.importances import importance_order, importances
from hpo.runs.repository import stored_job, stored_spec
from hpo.runs.results import StudyForecast, StudyResult
from hpo.runs.study_forecast import with_forecast
from hpo.runs.study_plan import is_weighed, make_plan
from storage.records import Study
from trainers.json_text import json_bytes

Draw = Callable[[StudyResult, Posterior | None, str], go.Figure]

FIGURES: dict[str, Draw] = {
    "ladder": lambda result, posterior, _: figures.ladder(result, posterior),
    "setting": lambda result, posterior, name: figures.setting_against_batch(
        result, name, posterior
    ),
    "response": lambda result, _, name: figures.response(result, name),
    "importances": lambda result, _, __: _or_why_not(lambda: figures.importances(result)),
    "slice": lambda result, _, __: _or_why_not(lambda: figures.slice_plot(result)),
    "contour": lambda result, _, __: _or_why_not(lambda: _contour(result)),
    "validation": lambda result, _, __: figures.validation(result),
}
WITH_LAWS = ("ladder", "setting")
SLOW = ("importances", "slice", "contour")  # these fit random forests or load Optuna
MOST_BATCH = 10**8
JSON = "application/json"
MOST_NUMBER = 2**31 - 1
NOT_WEIGHED = "on this machine, the smallest batch size is best in all three"
DATABASE = "DATABASE"  # replaces the URL of the server's database in a downloaded report
Number = Annotated[int, Path(ge=0, le=MOST_NUMBER)]


class AnswerCache:
    """Cache of the latest answers, so that a reopened page need not wait for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[bytes, object]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes], alive: object = None) -> Response:
        """Return the JSON for ``key``, made if it is missing; ``alive`` stays referenced while the answer is cached."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return Response(self._kept[key][0], media_type=JSON)
        made = make()
        with self._lock:
            self._kept[key] = made, alive
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return Response(made, media_type=JSON)


def data_routes(access: PageAccess) -> APIRouter:
    """Return the pages' own routes under ``/api/v1``; they are not in the OpenAPI document and may change."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)
    reader, drawn, kept = Depends(access.reader), AnswerCache(48), AnswerCache(8)

    @router.get("/figures/{key}")
    def of_all_studies(request: Request, key: str, who: Any = reader) -> Response:
        drawings = {
            "calibration": figures.calibration,
            "calibration_of_time": figures.calibration_of_time,
        }
        if key not in drawings:
            raise StudyNotFoundError(
                f"there is no figure {key!r}; the choices are {', '.join(drawings)}"
            )
        return Response(_drawn(drawings[key](access.calibration(request, who))), media_type=JSON)

    @router.get("/studies/{name}/figures/{key}")
    async def figure(
        request: Request,
        name: str,
        key: str,
        who: Any = reader,
        setting: str = "",
        laws: bool = False,
    ) -> Response:
        """Return a figure of the study, with ``laws`` once they are fitted, or at once without laws.

        A figure drawn with laws is stored, and from then on returned in both cases.
        """

        what = f"figure {key} {setting}"

        def of(result: StudyResult, posterior: Posterior | None) -> Response:
            # both objects stay alive with the figure, so that their ids remain valid cache keys
            return drawn.get(
                (id(result), id(posterior), key, setting),
                lambda: _drawn(FIGURES[key](result, posterior, setting)),
                (result, posterior),
            )

        def there() -> Response | None:
            study = access.study(request, who, name)
            if key not in FIGURES:
                raise StudyNotFoundError(
                    f"there is no figure {key!r}; the choices are {', '.join(FIGURES)}"
                )
            if key in WITH_LAWS + SLOW:
                found = access.kept(request, study, what, lambda: None)
                if found is not None:
                    return Response(found, media_type=JSON)
                if laws or key in SLOW:
                    return None
            return of(access.result(request, study), None)

        def with_laws() -> Response:
            study = access.study(request, who, name)

            def make() -> bytes | None:
                if key in SLOW:
                    return bytes(of(access.result(request, study), None).body)
                result, posterior = _laws(access, request, study)
                if posterior is None:
                    return None
                # the forecast of the page's text, which heeds the race
                with suppress(EvidenceError):
                    result = with_forecast(result, posterior)
                return bytes(of(result, posterior).body)

            made = access.kept(request, study, what, make)
            if made is None:
                return of(access.result(request, study), None)
            return Response(made, media_type=JSON)

        return await run_sync(there) or await access.compute(request, who, with_laws)

    @router.get("/studies/{name}/preview")
    async def preview(
        request: Request,
        name: str,
        at: Annotated[int, Query(ge=1, le=MOST_BATCH)],
        who: Any = reader,
        machine: str = "local",
        nodes: Annotated[int | None, Query(ge=1, le=MOST_NUMBER)] = None,
        minimise: Objective | None = None,
        slot_hours: Annotated[float | None, Query(gt=0, le=1e6)] = None,
        cost: str | None = None,
    ) -> Response:
        """Return a forecast and, if possible, a plan for the positions of the sliders; nothing is stored."""

        def make() -> Response:
            found = access.forecast(request, access.study(request, who, name), at)
            return _json(
                {
                    "forecast": found.to_dict(),
                    "prospects": forecast_remarks(found.numbers),
                    **_planned(found, machine, nodes, minimise, slot_hours, cost),
                }
            )

        return await access.compute(request, who, make)

    @router.get("/studies/{name}/report")
    async def report(request: Request, name: str, who: Any = reader) -> Response:
        """Return the HTML file of `hpo report`, as a download because its scripts are inline."""

        def write() -> Response:
            study = access.study(request, who, name)
            result, posterior = _laws(access, request, study)
            text = render_report(
                make_study_view(access.store(request), result, posterior, DATABASE),
                datetime.now(UTC),
            )
            stem = re.sub(r"[^A-Za-z0-9._-]+", "-", study.name).strip("-.") or "study"
            return Response(
                text,
                media_type="text/html; charset=utf-8",
                headers={"content-disposition": f'attachment; filename="{stem}.html"'},
            )

        return await access.compute(request, who, write)

    @router.get("/studies/{name}/columns")
    def columns(request: Request, name: str, who: Any = reader) -> Response:
        study, store = access.study(request, who, name), access.store(request)
        # columns change when a trial starts or ends, and the counts change with them
        counts = sorted(
            (batch, str(state), count)
            for batch, states in store.counts(study.id).items()
            for state, count in states.items()
        )
        return kept.get(
            (study.id, study.spec, tuple(counts)),
            lambda: _packed(trial_columns(store.trials(study.id), stored_spec(study))),
        )

    @router.get("/studies/{name}/tuned")
    def tuned(request: Request, name: str, who: Any = reader) -> Response:
        return _json({"names": stored_spec(access.study(request, who, name)).search.names})

    @router.get("/studies/{name}/trials/{number}/job")
    def job(request: Request, name: str, number: Number, who: Any = reader) -> Response:
        study = access.study(request, who, name)
        trial = access.store(request).trial(study.id, number)
        return _json(
            stored_job(study, trial).to_dict(),
            {"content-disposition": f'inline; filename="trial-{number}.json"'},
        )

    return router


def _laws(
    access: PageAccess, request: Request, study: Study
) -> tuple[StudyResult, Posterior | None]:
    """Return the study and its laws, which are None if there are too few trials for a fit."""
    result = access.result(request, study)
    if not result.answered:
        return result, None
    try:
        return access.laws(request, study)
    except EvidenceError:
        return result, None


def _contour(result: StudyResult) -> go.Figure:
    """Draw the contour over the two most important settings, as in the report."""
    order = importance_order(importances(result))
    if len(order) < 2:
        raise EvidenceError("needs two settings and more finished trials")
    return figures.contour(result, order[0], order[1])


def _or_why_not(draw: Callable[[], go.Figure]) -> go.Figure:
    """Return the figure, or an empty one with the reason, so that a page without Optuna lacks only some figures."""
    try:
        return draw()
    except (EvidenceError, ExportError) as error:
        empty = style.figure("")
        style.note(empty, str(error))
        return empty


def _planned(
    found: StudyForecast,
    machine: str,
    nodes: int | None,
    minimise: Objective | None,
    slot_hours: float | None,
    cost: str | None,
) -> dict[str, Any]:
    """Return the plan with its figures, or the reason why there is none."""
    try:
        if machine not in machine_names():
            raise PlanError(
                f"machine must be one of {', '.join(machine_names())}, but got {machine!r}"
            )
        plan = make_plan(
            found, machine, nodes, minimise=minimise, slot_hours=slot_hours, cost=_known_cost(cost)
        )
    except PlanError as error:
        return {"plan": None, "refused": str(error), "figures": None}
    compared = (plan.details or {}).get("trade_offs", ())
    drawn = {
        "front": figures.pareto_front(plan),
        "tradeoffs": figures.trade_offs(compared)
        if plan.seconds is None or is_weighed(plan.machine)
        else figures.trade_offs(compared, otherwise=NOT_WEIGHED),
        "shares": figures.time_shares(plan),
    }
    return {
        "plan": plan.to_dict(),
        "refused": None,
        "figures": {key: json.loads(_bare(drawing).to_json()) for key, drawing in drawn.items()},
    }


def _known_cost(name: str | None) -> str | None:
    """Return the name of a published cost; refuse a file path, because the name comes from the network."""
    if not name:
        return None
    if name not in workload_cost_names():
        raise PlanError(f"cost must be one of {', '.join(workload_cost_names())}, but got {name!r}")
    return name


def _json(document: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(_packed(document), media_type=JSON, headers=headers)


def _packed(document: Any) -> bytes:
    return json_bytes(document)


def _bare(figure: go.Figure) -> go.Figure:
    """Remove from a figure what the page provides: heading, colours and width."""
    return figure.update_layout(
        title_text=None,
        template=None,
        margin={"l": 60, "r": 16, "t": figure.layout.margin.t or 40, "b": 50},
        legend=style.LEGEND,
    )


def _drawn(figure: go.Figure) -> bytes:
    return str(_bare(figure).to_json()).encode()
