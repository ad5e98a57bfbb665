"""The report is one self-contained file, and says what is known and what to do next."""

import dataclasses
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dashboard_samples import add_trial, ended, full_view, make_study, reached, url_of

from hpo.cli.main import main
from hpo.dashboard import page
from hpo.dashboard.next_steps import next_steps
from hpo.dashboard.report import write_report
from hpo.dashboard.view import StudyView, load_study_view
from hpo.errors import HpoError, StudyNotFoundError
from hpo.extrapolation.calibration import ForecastCalibration
from hpo.extrapolation.forecast import Forecast
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.prospects import Chance, Sensitivity
from hpo.runs.formatting import forecast_remarks
from storage.records import StudyState, TrialState
from storage.store import Store

pytestmark = pytest.mark.fit


class References(HTMLParser):
    """Everything that a browser would fetch, and every tag by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "data", "action")
        ]


def parse(text: str) -> References:
    parser = References()
    parser.feed(text)
    return parser


def visible(text: str) -> str:
    """The words of a page, its scripts and styles left out."""
    return html.unescape(
        re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", text))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def view(folder: Path) -> StudyView:
    return full_view(folder)


@pytest.fixture(scope="module")
def report(folder: Path, view: StudyView) -> str:
    return write_report("small", url_of(folder), folder / "report.html").read_text("utf-8")


def test_nothing_is_fetched(report: str) -> None:
    parsed = parse(report)
    assert parsed.found == []
    assert not {"link", "img", "iframe", "base"} & set(parsed.tags)
    assert "default-src 'none'" in report
    assert "@import" not in re.sub(r"(?s)<script\b.*?</script>", "", report)


def test_plotly_is_embedded_once_and_every_figure_is_there(view: StudyView, report: str) -> None:
    assert len(re.findall(r"plotly\.js v\d", report)) == 1
    drawn = [picture.key for picture in page.pictures(view)]
    assert drawn == [
        "validation",
        "ladder",
        "batch-learning_rate",
        "batch-nesterov",
        "response-learning_rate",
        "response-nesterov",
        "designs",
        "importances",
        "slices",
        "contours",
        "curves",
    ]
    assert re.findall(r'<div id="figure-([\w-]+)"', report) == drawn


def test_the_forecast_is_the_headline(view: StudyView, report: str) -> None:
    assert view.result.forecast is not None
    ends, words = view.result.forecast.epochs_to_target, visible(report)
    assert f"At global batch size 256: {ends.median:.3g} epochs to top1 ≥ 0.9" in words
    assert f"(90 % interval {ends.low:.3g} to {ends.high:.3g}) with learning rate" in words
    assert view.result.forecast.reason in words
    assert f'class="trust {view.result.forecast.trust}"' in report


def test_what_else_the_forecast_says_is_all_there(view: StudyView, report: str) -> None:
    assert view.result.forecast is not None
    rows = forecast_remarks(view.result.forecast.numbers)
    assert [name for name, _ in rows] == [
        "regime",
        "chance of reaching the target",
        "risk of divergence",
        "half the learning rate",
        "twice the learning rate",
        "laws that fit as well",
        "earlier forecasts",
    ]
    words = " ".join(visible(report).split())
    for name, text in rows:
        assert f"{name} {text}" in words


def test_a_forecast_in_words() -> None:
    told = Forecast(
        512,
        Interval(20.0, 15.0, 30.0),
        {},
        "low",
        "",
        regime="diminishing returns",
        disagreement=1.31,
        laws={"epochs_to_target": {"B_crit": Interval(209.4, 126.0, 347.0)}},
        divergence=0.023,
        chances=(Chance(16.0, 0.0), Chance(20.0, 0.494), Chance(40.0, 0.9964)),
        calibration=ForecastCalibration(3, 2, 1.25),
        sensitivity=(
            Sensitivity(0.5, Interval(1.79, 1.1, 1.94), 0.004),
            Sensitivity(3.0, Interval(2.5, 1.5, 3.0), 1.0),
        ),
    )
    assert dict(forecast_remarks(told)) == {
        "regime": "diminishing returns; critical batch size 209 (126 to 347)",
        "chance of reaching the target": "0 % within 16 epochs, 49 % within 20, >99 % within 40",
        "risk of divergence": "2 %",
        "half the learning rate": "1.79 (1.1 to 1.94) times the epochs, <1 % risk of divergence",
        "3 times the learning rate": "2.5 (1.5 to 3) times the epochs, 100 % risk of divergence",
        "laws that fit as well": "differ by a factor of 1.31 in the epochs",
        "earlier forecasts": "2 of 3 held; the interval is 1.25 times as wide as from the laws alone",
    }
    of_a_table = dict(
        forecast_remarks(
            dataclasses.replace(
                told,
                divergence=None,
                sensitivity=(),
                disagreement=1.0,
                calibration=ForecastCalibration(),
            )
        )
    )
    assert of_a_table["risk of divergence"].startswith("unknown")
    assert (of_a_table["laws that fit as well"], of_a_table["earlier forecasts"]) == (
        "agree",
        "none to compare with yet",
    )


def test_the_tables(view: StudyView) -> None:
    runs, rungs = page.runs_table(view.result), page.rungs_table(view.result)
    assert runs is not None
    rows = {row[0]: dict(zip(runs.columns, row, strict=True)) for row in runs.rows}
    assert rows["forecast"]["epochs forecast"] == "18 (15 to 22)"
    assert (rows["forecast"]["epochs observed"], rows["forecast"]["inside the interval"]) == (
        "19",
        "yes",
    )
    assert rows["linear scaling"]["epochs observed"] == "–"
    assert rows["linear scaling"]["each run"] == "25, censored after 60 epochs"
    assert (rows["no scaling"]["epochs observed"], rows["no scaling"]["learning rate"]) == (
        "31",
        "0.9",
    )
    rung = dict(zip(rungs.columns, rungs.rows[2], strict=True))
    assert (rung["batch size"], rung["trials"], rung["reached"], rung["diverged"]) == (
        "64",
        "12",
        "10",
        "2",
    )
    assert (rung["best learning rate"], rung["best epochs"], rung["seeds"]) == ("0.2", "8.36", "2")


def test_the_verdict(view: StudyView) -> None:
    said = page.verdict(view.result)
    assert said.startswith("The forecast's plan took 19 epochs, inside its 90 % interval. ")
    # log(sqrt(30 * 32) / sqrt(18 * 20)) = 0.490, its standard error hypot(log(20 / 18), log(32 / 30)) / 2 = 0.0618
    assert "Against no scaling: the forecast needs 39 % fewer epochs (7.9 standard errors)." in said
    assert (
        "Against linear scaling: 2 of 2 runs by the forecast succeeded, 1 of 2 by "
        "linear scaling" in said
    )


def test_the_study_file_and_the_launch_command_are_told(view: StudyView, report: str) -> None:
    words = visible(report)
    assert view.result.study.spec in words
    assert f"hpo launch 1 --storage {view.storage} --seed 4" in words


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)><b>"
    with Store.open(url_of(tmp_path)) as store:
        study_id = make_study(store, name=name, message="<i>why</i>")
        add_trial(store, study_id, 16, 0.1, 0, ended(TrialState.DIVERGED, 1.0, name))
    text = write_report(name, url_of(tmp_path), tmp_path / "out.html").read_text("utf-8")
    parsed = parse(text)
    assert not {"img", "b", "i"} & set(parsed.tags)
    assert parsed.tags.count("script") == text.count("</script>")
    assert html.escape(name) in text
    assert name not in text


def reported(tmp_path: Path, state: StudyState, *results: Any, **changes: Any) -> tuple[str, str]:
    """The first next step, text and command, of a study with these trials; the report of it must work as well."""
    with Store.open(url_of(tmp_path)) as store:
        study_id = make_study(store, state, **changes)
        for seed, result in enumerate(results):
            add_trial(store, study_id, 16, 0.1, seed, result)
    text = write_report("small", url_of(tmp_path), tmp_path / "out.html").read_text("utf-8")
    step = next_steps(load_study_view("small", url_of(tmp_path)))[0]
    assert step.text.replace("\n", " ") in visible(text).replace("\n", " ")
    return step.text, step.command


def test_a_study_without_trials_says_how_to_start(tmp_path: Path) -> None:
    text, command = reported(tmp_path, StudyState.QUEUED)
    assert "no results yet" in text
    assert command.startswith("hpo run STUDY.yaml")


def test_a_running_study_says_to_look_again(tmp_path: Path) -> None:
    text, command = reported(tmp_path, StudyState.RUNNING, reached(4.0), None)
    assert "still running" in text
    assert command.startswith("hpo report small --storage sqlite:")


@pytest.mark.slow
def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    text, command = reported(tmp_path, StudyState.INTERRUPTED, ended(TrialState.CENSORED, 40.0))
    assert "run the same command to continue" in text
    assert command.startswith("hpo run")


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (TrialState.DIVERGED, "lower the range of learning rates"),
        (TrialState.FAILED, "fix the workload"),
        (TrialState.CENSORED, "budget.epochs_per_trial"),
        (TrialState.PRUNED, "budget.epochs_per_trial"),
    ],
)
def test_a_sweep_that_came_to_nothing_says_why(
    tmp_path: Path, state: TrialState, advice: str
) -> None:
    text, _ = reported(tmp_path, StudyState.FINISHED, *[ended(state, 3.0)] * 2)
    assert advice in text


@pytest.mark.slow
def test_a_study_without_full_scale_points_to_the_forecast(tmp_path: Path) -> None:
    _, command = reported(
        tmp_path, StudyState.FINISHED, reached(4.0), reached(4.2), full_scale=None
    )
    assert command.startswith("hpo forecast small --at BATCH")


@pytest.mark.slow
def test_a_forecast_without_a_plan_points_to_the_plan(tmp_path: Path) -> None:
    _, command = reported(tmp_path, StudyState.FINISHED, reached(4.0), reached(4.2))
    assert command.startswith("hpo plan small")


def test_an_unknown_study(folder: Path, view: StudyView) -> None:
    with pytest.raises(StudyNotFoundError, match="did you mean 'small'"):
        write_report("smal", url_of(folder), folder / "none.html")
    assert not (folder / "none.html").exists()


def test_a_missing_folder_and_a_folder_as_file(folder: Path, view: StudyView) -> None:
    with pytest.raises(HpoError, match="the folder of a report must exist"):
        write_report("small", url_of(folder), folder / "missing" / "report.html")
    with pytest.raises(HpoError, match="cannot write the report"):
        write_report("small", url_of(folder), folder)


def test_the_command(folder: Path, view: StudyView) -> None:
    output = folder / "by-command.html"
    done = CliRunner().invoke(
        main, ["report", "small", "-o", str(output), "--storage", url_of(folder)]
    )
    assert (done.exit_code, done.output) == (0, f"wrote {output}\n")
    assert output.stat().st_size > 1_000_000
