"""What a notebook shows: a study and a forecast as HTML, the progress of a sweep, and the documentation's notebook."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import IPython.display
import nbformat
import pytest
from nbclient import NotebookClient

import hpo
from hpo.runs import notebook
from hpo.runs.notebook import NotebookProgress, forecast_html, notebook_progress, study_html
from hpo.runs.progress import Progress, TimeLeft
from storage.store import Store
from tests.dashboard.dashboard_samples import LADDER, SPEC, fill, make_study, url_of

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
HOSTILE = "<script>alert(1)</script> & <b>bold</b>"


class Seen(HTMLParser):
    """The tags of some HTML, its text, and the cells of its tables by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.text, self.rows = list[str](), "", list[list[str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "
        if self.rows and self.tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> hpo.StudyResult:
    folder = tmp_path_factory.mktemp("notebook")
    with Store.open(url_of(folder)) as store:
        fill(store, make_study(store))
    return hpo.read_study("small", url_of(folder))


def test_a_study_shows_its_state_and_its_ladder(result: hpo.StudyResult) -> None:
    seen = Seen(result._repr_html_())
    assert "small : resnet to top1 ≥ 0.9, finished" in seen.text
    assert "46 trials: 1 queued, 40 reached, 1 censored, 2 diverged, 1 pruned, 1 failed" in (
        seen.text
    )
    assert seen.rows[0][:5] == [
        "batch size",
        "trials",
        "reached",
        "best epochs",
        "best learning rate",
    ]
    # 5 (1 + 16 / 100) sqrt(1.04) epochs at the best rate of the grid, 0.05: two seeds that are 4 % apart
    assert seen.rows[1][:5] == ["16", "11", "10", "5.91", "0.05"]
    assert [int(row[0]) for row in seen.rows[1:]] == list(LADDER)


def test_a_forecast_shows_its_intervals_and_its_trust(result: hpo.StudyResult) -> None:
    document = {
        "global_batch_size": 4096,
        "epochs_to_target": {"median": 11.84, "low": 8.827, "high": 15.79},
        "settings": {"learning_rate": {"median": 0.5186, "low": 0.2974, "high": 1.061}},
        "trust": "medium",
        "reason": f"4 times the largest rung {HOSTILE}",
    }
    seen = Seen(forecast_html(document))
    assert seen.rows == [
        ["forecast at batch size 4,096", "median and 90 % interval"],
        ["epochs to target", "11.8 (8.83 to 15.8)"],
        ["learning rate", "0.519 (0.297 to 1.06)"],
        ["trust", "medium"],
    ]
    assert f"4 times the largest rung {HOSTILE}" in seen.text
    whole = study_html({**result.to_dict(), "forecast": document}, ["learning_rate"])
    assert whole.endswith(forecast_html(document))


def test_nothing_that_a_study_says_of_itself_is_markup(result: hpo.StudyResult) -> None:
    hostile = dataclasses.replace(
        result.study, name=HOSTILE, workload=HOSTILE, metric=HOSTILE, message=HOSTILE
    )
    seen = Seen(dataclasses.replace(result, study=hostile)._repr_html_())
    assert "script" not in seen.tags
    assert seen.tags.count("b") == 1  # around the name
    assert seen.text.count("<script>alert(1)</script>") == 4


class Shown:
    """Stands where IPython's display does, and keeps what it was given."""

    def __init__(self) -> None:
        self.pages = list[str]()

    def __call__(self, page: Any, *, display_id: bool) -> Shown:
        self.update(page)
        return self

    def update(self, page: Any) -> None:
        self.pages.append(page.data)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown = Shown()
    monkeypatch.setattr(IPython.display, "display", shown)
    return shown


def test_progress_is_a_bar_and_the_ladder(
    result: hpo.StudyResult, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "DRAWN_EVERY", 0.0)
    progress = NotebookProgress()
    progress.sweep(result.spec, result.trials, {})
    assert '<progress value="45" max="50"' in shown.pages[-1]
    seen = Seen(shown.pages[-1])
    assert seen.rows[0][0] == "batch size"
    assert seen.rows[1][:2] == ["16", "11/12"]
    assert "45 of 50 trials, time left: unknown yet" in seen.text
    progress.message(HOSTILE)
    assert "script" not in Seen(shown.pages[-1]).tags
    progress.race(result.trials, {})
    assert "race: 45 of 46 trials have ended" in Seen(shown.pages[-1]).text


def test_progress_is_not_drawn_more_often_than_a_person_sees(
    result: hpo.StudyResult, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "DRAWN_EVERY", 1e9)
    progress = NotebookProgress()
    for _ in range(100):
        progress.sweep(result.spec, result.trials, {})
    assert len(shown.pages) == 1
    all_ended = [
        trial
        for trial in result.trials * 2
        if trial.state.finished  # as many as the budget has
    ][: SPEC["budget"]["trials"]]
    progress.sweep(result.spec, all_ended, {})
    assert '<progress value="50" max="50"' in shown.pages[-1]


def test_outside_a_kernel_nothing_is_drawn() -> None:
    assert type(notebook_progress()) is Progress


def test_the_time_left_counts_what_ended_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 130.0])
    monkeypatch.setattr("hpo.runs.progress.time.monotonic", lambda: next(clock))
    left = TimeLeft()
    assert left.of(10, 50) == "time left: unknown yet"
    assert left.of(15, 50) == "about 3 min 30 s left"  # 5 in 30 s, 35 to go


def test_the_notebook_of_the_documentation_is_stored_without_outputs() -> None:
    found = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(found)
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel, cell by cell; what it shows is HTML and plotly, and no widget."""
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    found = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(found, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [
        output for cell in found.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    assert not any(output.output_type == "error" for output in outputs)
    assert [output.text for output in outputs if output.output_type == "stream"] == []
    shown = [output.data for output in outputs]
    kinds = {kind for each in shown for kind in each}
    assert kinds <= {"text/plain", "text/html", "application/vnd.plotly.v1+json"}
    pages = [each["text/html"] for each in shown if "text/html" in each]
    assert '<progress value="64" max="64"' in pages[0]
    assert "64 trials:" in Seen(pages[1]).text
    assert "forecast at batch size 512" in Seen(pages[1]).text
    assert sum("application/vnd.plotly.v1+json" in each for each in shown) == 3
