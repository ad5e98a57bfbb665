"""The dashboard's pages, which contain no data: their scripts request it from the API with the login cookie.

Therefore a page is never stale, needs no permissions of its own, and shows a study's name only as text.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import FileResponse, HTMLResponse, Response

from hpo.planning.timing.costs import workload_cost_names
from storage.records import StudyState, TrialState

STATIC = Path(str(files("hpo.dashboard") / "static"))
_STATIC_FILES = frozenset(each.name for each in STATIC.iterdir() if each.is_file())
SECURITY = {
    # Plotly sets inline styles on its elements, and exports its figures as images
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-cache",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def dashboard_routes(path: str = "") -> APIRouter:
    """Return routes for every page of the dashboard and the files that they load; ``path`` prefixes all their URLs."""
    made, router = _Pages(path), APIRouter(include_in_schema=False)
    router.add_api_route("/", made.studies)
    router.add_api_route("/submit", made.submit)
    router.add_api_route("/calibration", made.calibration)
    router.add_api_route("/workers", made.workers)
    router.add_api_route("/studies/{name}", made.study)
    router.add_api_route("/studies/{name}/forecast", made.forecast)
    router.add_api_route("/studies/{name}/compare", made.compare)
    router.add_api_route("/studies/{name}/trials/{number}", made.trial)
    router.add_api_route("/static/plotly.min.js", _plotly)
    router.add_api_route("/static/{file}", _static)
    return router


class _Pages:
    """The pages, with links below ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def studies(self) -> Response:
        return self._page(
            "studies", "Studies", section="Studies", states=[str(state) for state in StudyState]
        )

    def submit(self) -> Response:
        return self._page("submit", "Submit a study", section="Submit")

    def calibration(self) -> Response:
        return self._page("calibration", "Calibration", section="Calibration")

    def workers(self) -> Response:
        return self._page("workers", "Workers", section="Workers")

    def study(self, request: Request) -> Response:
        name = _name(request)
        return self._page(
            "study",
            name,
            section="Studies",
            data={"study": name},
            states=[str(state) for state in TrialState],
        )

    def forecast(self, request: Request) -> Response:
        name = _name(request)
        return self._page(
            "forecast",
            f"{name}: forecast and plan",
            section="Studies",
            data={"study": name},
            costs=workload_cost_names(),
        )

    def compare(self, request: Request) -> Response:
        name = _name(request)
        return self._page(
            "compare", f"{name}: trials side by side", section="Studies", data={"study": name}
        )

    def trial(self, request: Request) -> Response:
        name, number = _name(request), request.path_params["number"]
        return self._page(
            "trial",
            f"{name}: trial {number}",
            section="Studies",
            data={"study": name, "trial": number},
        )

    def _page(
        self,
        page: str,
        title: str,
        *,
        section: str,
        data: dict[str, Any] | None = None,
        **values: Any,
    ) -> Response:
        text = _ENVIRONMENT.get_template(f"pages/{page}.html").render(
            root=self._path,
            title=title,
            section=section,
            script=f"{page}.js",
            data=data or {},
            version=version("largebatch"),
            **values,
        )
        return HTMLResponse(text, headers=SECURITY)


def _name(request: Request) -> str:
    """Return the study's name from the path, in which a slash is encoded as a special character."""
    return str(request.path_params["name"]).replace("\ue000", "/")


def _static(file: str) -> Response:
    if file not in _STATIC_FILES:
        return Response(status_code=404)
    path = STATIC / file
    return FileResponse(
        path, media_type=_TYPES.get(path.suffix), headers={"cache-control": "no-cache"}
    )


def _plotly() -> Response:
    # the script from Plotly's wheel; its URL has no version, and its content changes only with Plotly
    return FileResponse(
        str(files("plotly") / "package_data" / "plotly.min.js"),
        media_type="text/javascript",
        headers={"cache-control": "max-age=86400"},
    )


_ENVIRONMENT = Environment(
    loader=PackageLoader("hpo.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
