"""The pages: frames without data. What they show their scripts ask of the API, with the cookie of the login.

So a page is never stale, needs no right of its own, and shows a study's name only as text.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import FileResponse, HTMLResponse, Response

from hpo.planning.timing.costs import cost_names
from storage.records import StudyState, TrialState

STATIC = Path(str(files("hpo.dashboard") / "static"))
SECURITY = {
    # plotly sets styles on its elements, and makes pictures of its figures
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-cache",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def pages() -> APIRouter:
    """Every page of the dashboard, and the files that they load."""
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", _studies)
    router.add_api_route("/submit", _submit)
    router.add_api_route("/calibration", _calibration)
    router.add_api_route("/workers", _workers)
    router.add_api_route("/studies/{name}", _study)
    router.add_api_route("/studies/{name}/forecast", _forecast)
    router.add_api_route("/studies/{name}/compare", _compare)
    router.add_api_route("/studies/{name}/trials/{number}", _trial)
    router.add_api_route("/static/plotly.min.js", _plotly)
    router.add_api_route("/static/{file}", _static)
    return router


def _studies() -> Response:
    return _page(
        "studies", "Studies", section="Studies", states=[str(state) for state in StudyState]
    )


def _submit() -> Response:
    return _page("submit", "Submit a study", section="Submit")


def _calibration() -> Response:
    return _page("calibration", "Calibration", section="Calibration")


def _workers() -> Response:
    return _page("workers", "Workers", section="Workers")


def _study(request: Request) -> Response:
    name = _name(request)
    return _page(
        "study",
        name,
        section="Studies",
        data={"study": name},
        states=[str(state) for state in TrialState],
    )


def _forecast(request: Request) -> Response:
    name = _name(request)
    return _page(
        "forecast",
        f"{name}: forecast and plan",
        section="Studies",
        data={"study": name},
        costs=cost_names(),
    )


def _compare(request: Request) -> Response:
    name = _name(request)
    return _page("compare", f"{name}: trials side by side", section="Studies", data={"study": name})


def _trial(request: Request) -> Response:
    name, number = _name(request), request.path_params["number"]
    return _page(
        "trial", f"{name}: trial {number}", section="Studies", data={"study": name, "trial": number}
    )


def _name(request: Request) -> str:
    """The study's name as it stands in the address; a slash in it arrives as a sign of its own."""
    return str(request.path_params["name"]).replace("\ue000", "/")


def _static(file: str) -> Response:
    path = STATIC / file
    if path.parent != STATIC or not path.is_file():
        return Response(status_code=404)
    return FileResponse(
        path, media_type=_TYPES.get(path.suffix), headers={"cache-control": "no-cache"}
    )


def _plotly() -> Response:
    # the script that plotly's wheel carries; its address has no version, and its content changes with plotly alone
    return FileResponse(
        str(files("plotly") / "package_data" / "plotly.min.js"),
        media_type="text/javascript",
        headers={"cache-control": "max-age=86400"},
    )


def _page(
    page: str, title: str, *, section: str, data: dict[str, Any] | None = None, **values: Any
) -> Response:
    text = _ENVIRONMENT.get_template(f"pages/{page}.html").render(
        title=title,
        section=section,
        script=f"{page}.js",
        data=data or {},
        version=version("largebatch"),
        **values,
    )
    return HTMLResponse(text, headers=SECURITY)


_ENVIRONMENT = Environment(
    loader=PackageLoader("hpo.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
