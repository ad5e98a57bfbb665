"""Trials, curves, forecasts and plans through the API."""

from __future__ import annotations

import json

import numpy as np
import pytest
from api_server import add_trials, served, spec_of

from hpo.service.routes import trials
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, TrialResult, TrialState
from storage.store import Store
from trainers.private_files import lock_file

pytestmark = pytest.mark.fit


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        api.submit()
        yield api


def pages_of(api, **asked):
    found, after = [], None
    while True:
        answer = api.call(
            "GET",
            "/studies/bowl/trials",
            params=asked if after is None else {**asked, "after": after},
        )
        assert answer.status_code == 200, answer.text
        found += answer.json()["trials"]
        after = answer.json()["next"]
        if after is None:
            return found


def test_pages_of_trials_in_any_order(api):
    add_trials(api.store, "bowl", 7)
    add_trials(api.store, "bowl", 4, batch=32)
    assert [trial["number"] for trial in pages_of(api, limit=3)] == list(range(11))
    assert [trial["number"] for trial in pages_of(api, limit=4, descending=True)] == list(
        range(10, -1, -1)
    )
    by_epochs = pages_of(api, limit=3, order="epochs_to_target")
    assert [trial["epochs_to_target"] for trial in by_epochs] == sorted(
        t["epochs_to_target"] for t in by_epochs
    )
    assert [trial["number"] for trial in pages_of(api, global_batch_size=32)] == [7, 8, 9, 10]
    assert pages_of(api, state="failed") == []
    assert len(pages_of(api, state=["reached", "failed"], limit=5)) == 11
    assert api.call("GET", "/studies/bowl/trials?order=settings").status_code == 422
    assert api.call("GET", "/studies/bowl/trials?after=77").status_code == 404


def test_a_trial_has_every_setting(api):
    add_trials(api.store, "bowl", 2)
    trial = api.call("GET", "/studies/bowl/trials/1").json()
    assert set(trial["settings"]) == set(TrainingSettings().to_dict())
    assert (trial["number"], trial["state"], trial["settings"]["learning_rate"]) == (
        1,
        "reached",
        0.02,
    )
    assert trial["finished_at"].endswith("Z")
    assert api.call("GET", "/studies/bowl/trials/2").status_code == 404


def test_curves_are_columns_and_what_was_not_measured_is_null(api):
    add_trials(api.store, "bowl", 3, points=4)
    curves = api.call(
        "GET", "/studies/bowl/convergence?trial=2&trial=0&column=step&column=metric"
    ).json()["curves"]
    assert [curve["trial"] for curve in curves] == [2, 0]
    assert curves[0]["columns"] == {
        "step": [10, 20, 30, 40],
        "metric": [None, 0.5, pytest.approx(1 / 3), 0.25],
    }
    whole = api.call("GET", "/studies/bowl/convergence?trial=0").json()["curves"][0]
    assert set(whole["columns"]) == {"step", "epochs", "seconds", "train_loss", "loss", "metric"}


def test_long_curves_are_thinned_and_keep_their_ends(api):
    add_trials(api.store, "bowl", 1, points=1000)
    curve = api.call("GET", "/studies/bowl/convergence?trial=0&max_points=50&column=step").json()[
        "curves"
    ][0]
    steps = curve["columns"]["step"]
    assert (curve["points"], len(steps), steps[0], steps[-1]) == (1000, 50, 10, 10_000)
    assert max(np.diff(steps)) <= 2 * min(np.diff(steps))


def test_curves_of_many_points_are_read_and_sent_in_parts(api, monkeypatch):
    """The response is the same, and a request for many long curves takes little memory."""
    add_trials(api.store, "bowl", 5, points=40)
    address = "/studies/bowl/convergence?trial=4&trial=0&trial=3&trial=1&max_points=7"
    whole, read, sizes = api.call("GET", address).json(), Store.convergence, []

    def reading(self, trial_ids):
        found = read(self, trial_ids)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(Store, "convergence", reading)
    for most, parts in ((1000, [160]), (100, [80, 80]), (30, [40, 40, 40, 40])):
        sizes.clear()
        monkeypatch.setattr(trials, "PART", most)
        assert api.call("GET", address).json() == whole
        assert sizes == parts


def test_curves_that_are_not_there(tmp_path):
    with served(tmp_path, limits={"curves": 2}) as api:
        api.submit()
        add_trials(api.store, "bowl", 3)
        assert api.call("GET", "/studies/bowl/convergence?trial=0&trial=9").status_code == 404
        assert api.call("GET", "/studies/bowl/convergence").status_code == 422
        assert (
            api.call("GET", "/studies/bowl/convergence?trial=0&trial=1&trial=2").status_code == 422
        )
        assert (
            api.call("GET", "/studies/bowl/convergence?trial=0&column=settings").status_code == 422
        )


def add_ladder(api):
    """Trials at three batch sizes, the best at learning rates proportional to the batch."""
    study = api.store.study("bowl")
    noise = np.random.default_rng(0)
    for batch in (16, 32, 64):
        for factor in (0.3, 0.6, 1.0, 1.5, 3.0):
            settings = TrainingSettings(
                learning_rate=0.004 * batch * factor, normalization_batch_size=1
            ).to_dict()
            epochs = (
                2
                * (1 + batch / 64)
                * np.exp(0.3 * np.log(factor) ** 2 + 0.03 * noise.standard_normal())
            )
            [trial] = api.store.add_trials(
                study.id, [NewTrial(global_batch_size=batch, seed=0, settings=settings)]
            )
            api.store.start_trials([trial.id])
            api.store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.REACHED,
                    epochs_to_target=epochs,
                    epochs=epochs,
                    seconds=epochs,
                    steps=round(4096 * epochs / batch),
                    best_metric=0.09,
                    final_metric=0.09,
                    resolution_epochs=0.1,
                ),
            )


def test_forecast_and_plan(api):
    api.submit("planned", spec=spec_of("planned", full_scale={"global_batch_size": 256}))
    assert api.call("GET", "/studies/bowl/forecast").status_code == 422  # names no full-scale batch
    early = api.call("GET", "/studies/bowl/forecast?at=128")
    assert (early.status_code, early.json()["error"]["kind"]) == (409, "no_evidence")
    add_ladder(api)
    asked = "/studies/bowl/forecast?at=128&at=512&budget_epochs=30"
    forecasts = api.call("GET", asked).json()["forecasts"]
    assert [each["global_batch_size"] for each in forecasts] == [128, 512]
    for each in forecasts:
        epochs = each["epochs_to_target"]
        assert epochs["low"] < epochs["median"] < epochs["high"]
        assert 30 in [chance["epochs"] for chance in each["chance_of_reaching"]]
    fits = api.app.state.context.forecasts
    assert fits.remembered(api.store, api.store.study("bowl"), [128, 512], (30.0,)) is not None
    assert api.call("GET", asked).json()["forecasts"] == forecasts
    assert fits.remembered(api.store, api.store.study("bowl"), [128], (31.0,)) is None
    add_trials(api.store, "bowl", 1)
    assert fits.remembered(api.store, api.store.study("bowl"), [128, 512], (30.0,)) is None

    made = api.call(
        "POST",
        "/studies/bowl/plans",
        json={"global_batch_size": 128, "machine": "local", "workers": 1},
    )
    assert made.status_code == 201, made.text
    plan = made.json()["plan"]
    assert (plan["global_batch_size"], plan["workers"], plan["machine"]) == (128, 1, "local")
    shown = api.call("GET", f"/plans/{plan['id']}", scope="read").json()
    assert shown["plan"]["settings"] == plan["settings"]
    assert [
        each["plan"]["id"] for each in api.call("GET", "/studies/bowl/plans").json()["plans"]
    ] == [plan["id"]]
    script = api.call("GET", f"/plans/{plan['id']}/script")
    assert script.text.startswith("#!")
    assert script.headers["content-disposition"].startswith("attachment")
    job = api.call("GET", f"/plans/{plan['id']}/job").json()
    settings = api.call("GET", f"/plans/{plan['id']}/settings").json()
    assert job["settings"] == settings == json.loads(json.dumps(plan["settings"]))
    assert api.call("GET", "/plans/999").status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        {"machine": "/etc/passwd"},
        {"machine": "../local"},
        {"nodes": 0},
        {"workers": -1},
        {"global_batch_size": 10**13},
        {"global_batch_size": 1.5},
        {"launcher": "sh"},
        {"machine": "summitt"},
        {"cost": "/etc/passwd"},
        {"chance": 2},
    ],
)
def test_plans_that_cannot_be(api, asked):
    add_ladder(api)
    answer = api.call("POST", "/studies/bowl/plans", json={"global_batch_size": 128, **asked})
    assert answer.status_code == 422, answer.text
    assert "way_out" in answer.json()["error"] or answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "asked",
    [
        {"launcher": "ray", "backend": "horovod", "machine": "summit"},
        {"launcher": "ray", "backend": "horovod"},
        {"machine": "/etc/passwd"},
        {"machine": "summit", "nodes": 10**9},
    ],
)
def test_a_plan_that_is_refused_stores_nothing(api, asked):
    add_ladder(api)
    study = api.store.study("bowl")
    events = len(api.store.events(study_id=study.id))
    answer = api.call("POST", "/studies/bowl/plans", json={"global_batch_size": 128, **asked})
    assert answer.status_code == 422, answer.text
    assert api.call("GET", "/studies/bowl/plans").json() == {"plans": []}
    assert api.store.plans(study.id) == [] == api.store.forecasts(study.id)
    assert len(api.store.events(study_id=study.id)) == events


def test_a_plan_whose_folder_another_run_writes_to_stores_nothing(api, monkeypatch):
    monkeypatch.setattr("hpo.planning.launchers.launch.LOCK_SECONDS", 3600.0)  # nobody waits for it
    add_ladder(api)
    folder = api.app.state.context.config.folder / "plans" / "bowl-128-forecast"
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"weights")
    with (folder / "launch.lock").open("ab") as lock:
        lock_file(lock)
        answer = api.call("POST", "/studies/bowl/plans", json={"global_batch_size": 128})
    assert answer.status_code == 503, answer.text
    study = api.store.study("bowl")
    assert api.store.plans(study.id) == [] == api.store.forecasts(study.id)
    assert (folder / "checkpoint.pt").exists()


def test_machines_are_listed(api):
    names = [machine["name"] for machine in api.call("GET", "/machines").json()["machines"]]
    assert names[0] == "local"
    assert api.call("GET", "/machines/local").json()["nodes"] == 1
    assert api.call("GET", "/machines/..%2Fetc").status_code == 404
    assert api.call("GET", "/calibration").json() == {"plans": []}


def test_the_folder_of_a_study_is_that_of_whoever_entered_it_and_never_a_clients(api, tmp_path):
    answer = api.call("POST", "/studies", json={"spec": spec_of("other"), "folder": "/etc"})
    assert answer.status_code == 422 and api.store.study("bowl").folder == ""
    add_ladder(api)
    store = api.store
    study = store.study("bowl")
    store.update_spec(
        study.id, study.spec, str(tmp_path / "sub")
    )  # as `hpo run` in that folder does
    plan = api.call("POST", "/studies/bowl/plans", json={"global_batch_size": 128}).json()["plan"]
    job = api.call("GET", f"/plans/{plan['id']}/job").json()
    assert job["search_path"] == str(tmp_path / "sub")
    assert (
        api.call(
            "POST", "/studies/bowl/resume", json={"spec": study.spec, "folder": "/etc"}
        ).status_code
        == 422
    )
    api.call("POST", "/studies/bowl/cancel")
    assert store.study("bowl").folder == str(tmp_path / "sub")


@pytest.mark.parametrize(
    "asked",
    [
        {"cost": "resnet50", "node_failure_hours": 50000.0},
        {"launcher": "flux"},
        {"launcher": "grid_engine"},
        {"launcher": "other", "micro_batch_size": 8},
        pytest.param(
            {
                "cost": {
                    "parameters": 10**6,
                    "gradient_tensors": 4,
                    "flops_per_sample": 1e9,
                    "activation_bytes_per_sample": 1e5,
                    "sample_bytes": 0,
                }
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_plans_are_asked_for_as_from_the_command_line(api, asked):
    add_ladder(api)
    answer = api.call(
        "POST", "/studies/bowl/plans", json={"global_batch_size": 128, "machine": "summit", **asked}
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["plan"]["launcher"] == asked.get("launcher", "lsf")
