"""``hpo report``: writes a study as one self-contained HTML file, which needs no network or server."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hpo.dashboard import page
from hpo.dashboard.next_steps import next_steps
from hpo.dashboard.sample_image_figures import WIDTH
from hpo.dashboard.view import StudyView, load_study_view
from hpo.errors import HpoError
from hpo.runs.formatting import forecast_remarks

FIGURE_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
}


def write_report(name: str, storage: str, output: Path | str) -> Path:
    """Write the report of a study and return its path.

    Raises :class:`StudyNotFoundError` for a study that is not in the storage, and :class:`HpoError` if the file
    cannot be written.
    """
    output = Path(output)
    if not output.absolute().parent.is_dir():
        raise HpoError(
            f"the folder of a report must exist, but there is no folder {output.parent}; "
            f"create it, or give another file"
        )
    if output.is_dir():
        raise HpoError(f"cannot write the report to {output}: it is a folder; give a file")
    text = render_report(load_study_view(name, storage), datetime.now(UTC))
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HpoError(
            f"cannot write the report to {output}: {error.strerror or error}; give another file"
        ) from error
    return output


def render_report(view: StudyView, now: datetime) -> str:
    """Return the report as HTML, with all names and reasons escaped."""
    result = view.result
    return (
        _environment()
        .get_template("report.html")
        .render(
            result=result,
            target=page.target_of(result),
            progress=page.progress(result),
            headline=page.headline(result),
            forecast=result.forecast,
            prospects=forecast_remarks(result.forecast.numbers) if result.forecast else [],
            runs=page.runs_table(result),
            rungs=page.rungs_table(result),
            verdict=page.verdict(result),
            steps=next_steps(view),
            pictures=[(picture, _figure_html(picture)) for picture in page.pictures(view)],
            plotly=Markup(get_plotlyjs()),
            now=now,
            width=WIDTH,
            version=version("largebatch"),
        )
    )


def _figure_html(picture: page.PagePicture) -> Markup:
    # the page has its own heading; Plotly's JSON escapes <, > and /, so that no name can end the script
    top = picture.figure.layout.margin.t or 30
    figure = picture.figure.update_layout(title_text=None, margin_t=top)
    return Markup(
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{picture.key}",
            config=FIGURE_CONFIG,
        )
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hpo.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
