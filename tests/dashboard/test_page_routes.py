"""The pages and the data behind them, requested in this process."""

from __future__ import annotations

import base64
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest

from hpo.cli.commands.web import dashboard_routers
from hpo.dashboard.pages import STATIC
from hpo.runs.formatting import format_number, format_percent
from hpo.service.app import create_app
from hpo.service.auth import create_token
from hpo.service.config import ServerConfig
from hpo.service.forecast_cache import ForecastCache
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, TrialPurpose, TrialState
from storage.store import Store
from tests.dashboard.dashboard_samples import (
    FULL_SCALE,
    add_plans,
    add_trial,
    ended,
    fill,
    make_points,
    make_study,
    reached,
)
from tests.service.api_server import listening

pytestmark = pytest.mark.fit

PAGES = (
    "/",
    "/submit",
    "/calibration",
    "/workers",
    "/studies/small",
    "/studies/small/forecast",
    "/studies/small/compare",
    "/studies/small/trials/0",
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('routes')}/small.db"
    with Store.open(url) as store:
        study = make_study(store)
        fill(store, study)
        add_plans(store, study)
        wild = make_study(store, name="wild")
        add_trial(
            store, wild, 16, 1.0, 0, ended(TrialState.DIVERGED, 1.0, "the loss is not a number")
        )
    return url


@pytest.fixture(scope="module")
def client(storage: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config = ServerConfig(storage=storage, folder=tmp_path_factory.mktemp("folder"))
    with Store.open(storage) as store:
        secret, _ = create_token(store, owner="ada", scope="read")
    headers = {"Authorization": f"Bearer {secret}"}
    with (
        listening(create_app(config, dashboard_routers())) as address,
        httpx.Client(base_url=address, headers=headers, timeout=240) as asked,
    ):
        yield asked


def get(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(f"/api/v1{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(column: Any) -> list[float]:
    """A column of a figure: a list, or an array as plotly packs it."""
    if isinstance(column, dict):
        kind = {"f8": np.float64, "f4": np.float32, "i2": np.int16, "i1": np.int8, "i4": np.int32}[
            column["dtype"]
        ]
        return np.frombuffer(base64.b64decode(column["bdata"]), kind).tolist()  # type: ignore[no-any-return]
    return list(column)


@pytest.mark.parametrize("page", PAGES)
def test_pages_forbid_foreign_scripts_and_frames(client: httpx.Client, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    policy = dict(
        each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";")
    )
    assert policy["script-src"] == "'self'"
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert "<script>" not in answer.text
    assert " on" not in answer.text.split("<main")[0].split("<head>")[0]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_pages_hold_no_data_so_that_they_need_no_token(client: httpx.Client) -> None:
    answer = client.get("/studies/small", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert "top1" not in answer.text
    assert (
        client.get("/api/v1/studies/small/columns", headers={"Authorization": ""}).status_code
        == 401
    )


def test_a_name_with_markup_is_escaped_in_the_page(client: httpx.Client) -> None:
    text = client.get("/studies/%3Cscript%3Ealert(1)%3C%2Fscript%3E%22").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;" in text


@pytest.mark.parametrize(
    "path",
    [
        "..%2Fpages.py",
        "%2e%2e/pages.py",
        "..%5Cpages.py",
        "%2Fetc%2Fpasswd",
        "",
        "none.js",
        "....//pages.py",
        "app.js%00.css",
    ],
)
def test_static_files_are_those_of_the_folder_alone(client: httpx.Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code in (400, 404)


def test_every_static_file_is_served_with_its_type(client: httpx.Client) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for file in STATIC.iterdir():
        answer = client.get(f"/static/{file.name}")
        assert answer.headers["content-type"].startswith(types[file.suffix])
        assert answer.content == file.read_bytes()
    assert client.get("/static/plotly.min.js").text.lstrip().startswith("/**")


def test_scripts_are_short_and_put_text_nowhere_as_markup() -> None:
    for file in STATIC.glob("*.js"):
        text = file.read_text("utf-8")
        assert text.count("\n") < 400, file.name
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert way not in text, (file.name, way)


def test_every_script_imports_what_its_modules_have() -> None:
    """A name that is missing is found by the browser alone, and then the page is blank."""
    import re

    exported = {
        file.name: set(
            re.findall(
                r"^export (?:async )?(?:function|const|class|let) (\w+)",
                file.read_text("utf-8"),
                re.M,
            )
        )
        for file in STATIC.glob("*.js")
    }
    for file in STATIC.glob("*.js"):
        for names, module in re.findall(
            r'^import \{ ([^}]+) \} from "\./(\S+)";', file.read_text("utf-8"), re.M
        ):
            assert {name.strip() for name in names.split(",")} <= exported[module], (
                file.name,
                module,
            )
            for name in names.split(","):
                assert len(re.findall(rf"\b{name.strip()}\b", file.read_text("utf-8"))) > 1, (
                    file.name,
                    name,
                )


def test_columns_are_those_of_the_trials(client: httpx.Client, storage: str) -> None:
    found = get(client, "/studies/small/columns")
    with Store.open(storage) as store:
        trials = store.trials(store.study("small").id)
    assert found["columns"]["number"] == [trial.number for trial in trials]
    assert found["columns"]["epochs_to_target"] == [trial.epochs_to_target for trial in trials]
    assert found["settings"]["learning_rate"] == [
        trial.settings["learning_rate"] for trial in trials
    ]
    assert (
        set(found["settings"])
        == set(get(client, "/studies/small/tuned")["names"])
        == set(found["tuned"])
        == {"learning_rate", "nesterov"}
    )


def test_the_ladder_shows_the_forecast_of_the_text_after_a_race(
    client: httpx.Client, storage: str
) -> None:
    """The race took more epochs than the laws expect, which corrects the forecast."""
    with Store.open(storage) as store:
        study = make_study(store, name="raced")
        fill(store, study)
        for rate, seed in itertools.product((0.4, 0.8), (7, 8)):
            settings = TrainingSettings(learning_rate=rate).to_dict()
            raced = NewTrial(
                global_batch_size=FULL_SCALE,
                seed=seed,
                settings=settings,
                purpose=TrialPurpose.RACE,
            )
            [trial] = store.add_trials(study, [raced])
            store.start_trials([trial.id])
            store.finish_trial(trial.id, reached(30.0), make_points(FULL_SCALE, 30.0))
    told = get(client, "/studies/raced/forecast")["forecasts"][0]["epochs_to_target"]
    drawn = get(client, "/studies/raced/figures/ladder", laws=True)["data"]
    [point] = [trace for trace in drawn if trace.get("name") == "forecast, 90 % interval"]
    assert point["y"] == pytest.approx([told["median"]])


def test_the_trade_offs_of_this_machine_say_why_there_are_none(client: httpx.Client) -> None:
    """Its speed is known from the sweep, but assumed to be the same at every batch size."""
    found = get(client, "/studies/small/preview", at=FULL_SCALE, machine="local")
    assert found["plan"]["seconds_to_target"] is not None
    [note] = found["figures"]["tradeoffs"]["layout"]["annotations"]
    assert note["text"] == "on this machine, the smallest batch size is best in all three"


def test_the_ladder_without_laws_has_every_trial_and_with_them_the_band_and_the_regimes(
    client: httpx.Client,
) -> None:
    bare, fitted = (
        get(client, "/studies/small/figures/ladder", laws=laws) for laws in (False, True)
    )
    numbers = sorted(
        number for trace in bare["data"] if "customdata" in trace for number in trace["customdata"]
    )
    ended_trials = [
        number
        for number, state in zip(
            *(
                get(client, "/studies/small/columns")["columns"][each]
                for each in ("number", "state")
            ),
            strict=True,
        )
        if TrialState(state).finished
    ]
    assert numbers == ended_trials
    assert not any(trace.get("name") == "90 % band" for trace in bare["data"])
    assert any(trace.get("name") == "90 % band" for trace in fitted["data"])
    texts = [each["text"].replace("<br>", " ") for each in fitted["layout"]["annotations"]]
    # 5 (1 + B / 100) epochs: from almost flat at 16 to a slope of 0.7 at 256
    assert texts.index("diminishing returns") >= 0
    assert "maximal data parallelism" in texts


def test_a_server_that_is_started_again_takes_forecast_and_laws_from_the_database(
    storage: str, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ("/studies/small/forecast", "/studies/small/figures/ladder?laws=true")
    before = [get(client, path) for path in paths]

    def never(*_: Any) -> Any:
        raise AssertionError("laws were fitted that are stored")

    for name in (
        "hpo.service.fit_process.fit",
        "hpo.runs.study_forecast.fit_posterior",
        "hpo.service.fit_process.forecast",  # nor a forecast made, nor a figure drawn, of laws that are there
        "hpo.dashboard.figures.ladder",
        "hpo.runs.repository.read_result",
    ):
        monkeypatch.setattr(name, never)
    config = ServerConfig(storage=storage, folder=tmp_path)
    with (
        listening(create_app(config, dashboard_routers())) as address,
        httpx.Client(base_url=address, headers=client.headers, timeout=240) as again,
    ):
        assert [get(again, path) for path in paths] == before
        assert get(again, "/studies/small/figures/ladder", laws=False) == before[1]


def test_an_answer_is_kept_for_the_study_as_it_is(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(len(made))
        return f"{len(made)}".encode()

    with Store.open(f"sqlite:///{tmp_path}/kept.db") as store:
        study_id = make_study(store, name="kept")
        add_trial(store, study_id, 16, 0.1, 0, reached(4.0))
        study = store.study("kept")

        def kept() -> bytes | None:  # as a server that has just started
            return ForecastCache().kept(store, study, "forecast", make)

        assert [kept(), kept()] == [b"1", b"1"]
        assert ForecastCache().kept(store, study, "figure ladder ", lambda: None) is None
        add_trial(store, study_id, 16, 0.1, 1, ended(TrialState.DIVERGED, 1.0))
        assert kept() == b"2"
        with mock.patch(
            "hpo.service.forecast_cache.version", return_value="0.0.0"
        ):  # another release
            assert kept() == b"3"


def test_which_settings_matter_is_drawn_or_said_to_need_optuna(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = get(client, "/studies/small/figures/importances")["data"]
    assert [bar["name"] for bar in bars][::2] == ["128", "64", "32", "16", "all"]
    contour = get(client, "/studies/small/figures/contour")["layout"]
    assert {contour[axis]["title"]["text"] for axis in ("xaxis", "yaxis")} == {
        "global_batch_size",
        "learning_rate",
    }
    monkeypatch.setitem(sys.modules, "optuna", None)
    (note,) = get(client, "/studies/wild/figures/slice")["layout"]["annotations"]
    assert note["text"].endswith("pip install 'largebatch[train]'")


def test_figures_that_are_not_there_are_named(client: httpx.Client) -> None:
    answer = client.get("/api/v1/studies/small/figures/pie")
    assert answer.status_code == 404
    assert "ladder" in answer.json()["error"]["message"]
    assert client.get("/api/v1/figures/pie").status_code == 404
    assert client.get(
        "/api/v1/studies/small/figures/setting", params={"setting": "momentum"}
    ).status_code in (409, 422)


def test_a_study_that_only_diverged_has_its_figures(client: httpx.Client) -> None:
    found = get(client, "/studies/wild/figures/ladder", laws=True)
    assert [trace["name"] for trace in found["data"]] == ["diverged"]


def test_a_preview_keeps_nothing_and_draws_the_plan(client: httpx.Client, storage: str) -> None:
    with Store.open(storage) as store:
        before = len(store.plans(store.study("small").id))
        found = get(client, "/studies/small/preview", at=FULL_SCALE, machine="local")
        assert len(store.plans(store.study("small").id)) == before
    assert found["forecast"]["global_batch_size"] == FULL_SCALE
    told = dict(found["prospects"])
    assert told["risk of divergence"] == format_percent(found["forecast"]["divergence"])
    for name, row in zip(
        ("half", "twice"), found["forecast"]["sensitivity"]["learning_rate"], strict=True
    ):
        assert told[f"{name} the learning rate"].startswith(
            f"{format_number(row['epochs_factor']['median'])} ("
        )
    front = found["plan"]["details"]["front"]
    drawn = found["figures"]["front"]["data"][0]
    assert values(drawn["x"]) == pytest.approx([row["accelerator_hours"] for row in front])
    assert sum(drawn["marker"]["symbol"][at] == "star" for at in range(len(front))) == sum(
        r["chosen"] for r in front
    )
    shares = found["figures"]["shares"]["data"][0]
    assert sum(values(shares["x"])) == pytest.approx(100, abs=0.5)


def test_a_preview_tells_why_there_is_no_plan(client: httpx.Client) -> None:
    found = get(client, "/studies/small/preview", at=FULL_SCALE, machine="nowhere")
    assert found["plan"] is None
    assert "nowhere" in found["refused"]
    assert found["forecast"]["epochs_to_target"]["median"] > 0
    answer = client.get(
        "/api/v1/studies/small/preview", params={"at": FULL_SCALE, "cost": "/etc/passwd"}
    )
    assert "cost must be one of" in answer.json()["refused"]
    assert client.get("/api/v1/studies/small/preview", params={"at": 0}).status_code == 422


def test_a_trial_s_job_is_what_trained_it(client: httpx.Client, storage: str) -> None:
    job = get(client, "/studies/small/trials/7/job")
    with Store.open(storage) as store:
        trial = store.trial(store.study("small").id, 7)
    assert job["settings"] == trial.settings
    assert (job["global_batch_size"], job["seed"]) == (trial.global_batch_size, trial.seed)
    assert client.get("/api/v1/studies/small/trials/999/job").status_code == 404
    assert client.get("/api/v1/studies/small/trials/99999999999999/job").status_code == 422


@pytest.mark.slow
def test_the_report_is_a_download_that_names_no_database(
    client: httpx.Client, storage: str
) -> None:
    answer = client.get("/api/v1/studies/small/report")
    assert answer.headers["content-disposition"] == 'attachment; filename="small.html"'
    assert "Epochs to target against batch size" in answer.text
    assert Path(storage.removeprefix("sqlite:///")).name not in answer.text


def test_calibration_is_drawn_for_epochs_and_time(client: httpx.Client) -> None:
    found = get(client, "/figures/calibration")
    placed = [trace for trace in found["data"] if trace.get("mode") == "markers"]
    assert [values(trace["y"]) for trace in placed] == [[19.0]]  # the mean of 18 and 20
    assert get(client, "/figures/calibration_of_time")["layout"][
        "annotations"
    ]  # no time was forecast


def test_thousands_of_trials_are_thinned_evenly(tmp_path: Path) -> None:
    from hpo.dashboard.points import thin_trials

    with Store.open(f"sqlite:///{tmp_path}/many.db") as store:
        study = make_study(store)
        for epochs in range(1, 40):
            add_trial(store, study, 16, 0.1, epochs, reached(float(epochs)))
        add_trial(store, study, 32, 0.1, 0, reached(5.0))
        trials = store.trials(study)
    kept = thin_trials(trials, 10)
    assert thin_trials(trials, 40) == list(trials)
    assert 10 <= len(kept) <= 12
    epochs = [trial.epochs_to_target or math.nan for trial in kept if trial.global_batch_size == 16]
    assert (min(epochs), max(epochs)) == (1.0, 39.0)
    assert max(np.diff(sorted(epochs))) <= 39 / 10 * 1.5
    assert any(trial.global_batch_size == 32 for trial in kept)  # a rung with one trial is not lost
