"""Both clients against a real server: every call, every error, and events as they happen."""

import threading
import time

import pytest
from api_server import add_trials, fail_trials, served, spec_of
from client_kinds import client_of
from swept_ladder import write_trials

import hpo
from hpo import errors
from hpo.client.retries import RetryPolicy
from search_spaces.settings import TrainingSettings
from storage.records import StudyState


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture(params=["sync", "async"])
def client(request, api):
    with client_of(request.param, str(api.client.base_url), api.token("ada")) as client:
        yield client


@pytest.fixture
def name(request):
    return f"study of {request.node.name}/%"


def spec(name, **more):
    return spec_of(
        name, full_scale={"global_batch_size": 256, "machine": "local", "workers": 1}, **more
    )


def test_a_study_is_submitted_in_every_form(client, name, tmp_path, api):
    (tmp_path / "study.yaml").write_text(spec(name))
    for form in (
        spec(name),
        tmp_path / "study.yaml",
        str(tmp_path / "study.yaml"),
        hpo.parse_study(spec(name)),
    ):
        study = client.submit(form, priority=2, max_samples=10**6, max_accelerator_hours=0.5)
        assert study.name == name
    status = study.status()
    assert (status.state, status.owner, status.priority, status.ended) == (
        "queued",
        "ada",
        2,
        False,
    )
    assert (status.document["max_samples"], status.document["max_accelerator_hours"]) == (
        10**6,
        0.5,
    )
    assert status.created_at.tzinfo is not None
    assert [event.kind for event in study.logs()] == ["submitted"]
    assert api.store.study(name).spec == spec(name)


def test_trials_and_curves(client, name, api):
    study = client.submit(spec(name))
    add_trials(api.store, name, 3, points=4)
    add_trials(api.store, name, 2, points=0, batch=32)
    trials = study.trials()
    assert [(trial.number, trial.state, trial.global_batch_size) for trial in trials] == [
        (0, "reached", 16),
        (1, "reached", 16),
        (2, "reached", 16),
        (3, "reached", 32),
        (4, "reached", 32),
    ]
    assert trials[2].epochs_to_target == 2.2
    assert TrainingSettings.from_dict(trials[2].settings).learning_rate == 0.03
    assert [trial.number for trial in study.trials(global_batch_size=32)] == [3, 4]
    assert study.trials(states=["failed"]) == []
    curves = study.convergence(columns=["step", "metric"])
    assert list(curves) == [0, 1, 2, 3, 4]
    assert curves[1] == {"step": [10, 20, 30, 40], "metric": [None, 1 / 2, 1 / 3, 1 / 4]}
    assert curves[4] == {"step": [], "metric": []}
    assert study.convergence([2], columns=["step"], max_points=2) == {2: {"step": [10, 40]}}


@pytest.mark.medium
def test_lists_of_more_than_a_page(client, name, api, monkeypatch):
    monkeypatch.setattr("hpo.client.calls.PAGE", 2)
    monkeypatch.setattr("hpo.client.calls.CURVES_AT_A_TIME", 2)
    study = client.submit(spec(name))
    add_trials(api.store, name, 5)
    assert [trial.number for trial in study.trials()] == [0, 1, 2, 3, 4]
    assert list(study.convergence()) == [0, 1, 2, 3, 4]
    for number in range(3):
        client.submit(spec(f"{name} {number}"))
    assert {found.name for found in client.studies(search=name)} == {
        name,
        *(f"{name} {n}" for n in range(3)),
    }


def swept(api, name):
    write_trials(api.store, api.store.study(name).id, train_samples=640, best_metric=0.1)


@pytest.mark.fit
def test_a_forecast_and_a_plan_with_its_files(client, name, api, tmp_path):
    study = client.submit(spec(name))
    with pytest.raises(errors.EvidenceError):
        study.forecast(256)
    swept(api, name)
    forecast = study.forecast(256)
    assert (
        forecast.epochs_to_target.low
        < forecast.epochs_to_target.median
        < forecast.epochs_to_target.high
    )
    assert forecast.settings["learning_rate"].low < forecast.settings["learning_rate"].high
    assert forecast.trust in ("high", "medium", "low")
    TrainingSettings.from_dict(forecast.complete_settings)
    plan = study.plan(machine="local", nodes=1, workers=1)
    assert (plan.machine, plan.nodes, plan.workers, plan.global_batch_size) == ("local", 1, 1, 256)
    assert plan.epochs_to_target.median == pytest.approx(forecast.epochs_to_target.median, rel=1e-6)
    written = plan.write(tmp_path / "plan")
    assert sorted(path.name for path in written) == ["job.json", "launch.sh", "settings.json"]
    assert (tmp_path / "plan" / "launch.sh").stat().st_mode & 0o111
    assert [each.id for each in study.plans()] == [plan.id]
    with pytest.raises(errors.HpoError):
        study.plan(machine="/etc/passwd")


def test_errors_have_their_kinds(client, name, api):
    study = client.submit(spec(name))
    with pytest.raises(errors.StudyNotFoundError, match="there is no study"):
        client.study(f"{name}s").status()
    with pytest.raises(errors.ConflictError, match="with another spec"):
        client.submit(spec(name, seeds=2))
    with pytest.raises(
        errors.SpecError, match="workload must be one that this server allows"
    ) as caught:
        client.submit(spec_of(name).replace("noisy_quadratic", "os:system"))
    assert (caught.value.line, caught.value.key) == (2, "workload")
    with pytest.raises(errors.SpecError, match="did you mean 'budget'"):
        client.submit(spec_of(name).replace("budget", "bugdet"))
    with pytest.raises(errors.RequestError):
        study.convergence([0], columns=["colour"])
    assert errors.SpecError.exit_code == errors.RequestError.exit_code == 2


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tokens_that_do_not_do(kind, api, name):
    api.submit(name)
    url = str(api.client.base_url)
    cases = {
        "lb_" + "x" * 43: errors.AuthenticationError,
        api.ended_token(revoked=True): errors.AuthenticationError,
        api.ended_token(revoked=False): errors.AuthenticationError,
    }
    for token, error in cases.items():
        with client_of(kind, url, token) as client, pytest.raises(error) as caught:
            client.study(name).status()
        assert token not in str(caught.value)
    with client_of(kind, url, api.token("ada", "read")) as client:
        assert client.study(name).status().name == name
        with pytest.raises(errors.NotAllowedError, match="needs the scope submit"):
            client.study(name).cancel()
    with (
        client_of(kind, url, api.token("bob")) as client,
        pytest.raises(errors.NotAllowedError, match="belongs to"),
    ):
        client.study(name).cancel()


def test_cancel_and_resume(client, name):
    study = client.submit(spec(name))
    assert study.cancel().state == "cancelled"
    assert study.cancel().state == "cancelled"
    with pytest.raises(errors.StudyFailedError, match="is cancelled"):
        study.wait(timeout=30)
    assert study.resume().state == "queued"
    larger = spec(name).replace("trials: 30", "trials: 60")
    study.cancel()
    assert "trials: 60" in study.resume(larger).document["spec"]


def test_rename_and_delete(client, name, api):
    study = client.submit(spec(name))
    new = f"{name} renamed: 2"
    status = study.rename(new)
    assert (status.name, study.name, study.status().name) == (new, new, new)
    assert hpo.parse_study(status.document["spec"]).name == new
    with pytest.raises(errors.StudyNotFoundError):
        client.study(name).status()
    again = client.submit(spec(name))
    with pytest.raises(errors.ConflictError, match="exists already"):
        again.rename(new)
    assert again.delete() is None
    with pytest.raises(errors.StudyNotFoundError):
        again.status()
    study.delete()


def test_failed_trials_go_on(client, name, api):
    study = client.submit(spec(name))
    fail_trials(api.store, name, 2)
    study.cancel()
    assert study.resume().trials == {"failed": 2}
    assert study.resume(retry_failed=True).trials == {"queued": 2}


def later(work, *, seconds=0.3):
    def run():
        time.sleep(seconds)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def play(api, name):
    """What a worker would report, as time goes by."""
    store = api.store
    study = store.study(name)
    for number in range(3):
        store.add_event(study.id, "noted", f"note {number}", {"number": number})
        add_trials(store, name, 1)
        time.sleep(0.2)
    store.set_study_state(study.id, StudyState.FINISHED, "done")


def test_events_come_until_the_study_ends(client, name, api):
    study = client.submit(spec(name))
    (submitted,) = study.logs()
    played = later(lambda: play(api, name))
    events = list(study.events(progress=True))
    played.join()
    notes = [event for event in events if event.kind == "noted"]
    assert [(event.message, event.data, event.study) for event in notes] == [
        (f"note {number}", {"number": number}, name) for number in range(3)
    ]
    assert events[0].kind == "submitted" or any(event.id == submitted.id for event in events)
    progress = [event for event in events if event.kind == "progress"]
    assert progress[-1].data["state"] == "finished"
    assert progress[-1].data["trials"]["reached"] == 3
    assert [
        event.message for event in study.events(after=notes[0].id) if event.kind == "noted"
    ] == ["note 1", "note 2"]


@pytest.mark.medium
def test_waiting_tells_what_happens(client, name, api):
    study, told = client.submit(spec(name)), []
    with pytest.raises(errors.WaitTimeoutError, match=r"is still queued after 0.2 s"):
        study.wait(timeout=0.2, poll=0.05)
    played = later(lambda: play(api, name), seconds=0.1)
    status = study.wait(timeout=60, poll=0.1, on_event=lambda event: told.append(event.message))
    played.join()
    assert (status.state, status.message, status.trials["reached"]) == ("finished", "done", 3)
    assert [message for message in told if message.startswith("note")] == [
        "note 0",
        "note 1",
        "note 2",
    ]


def test_the_contract_in_one_line(api, name):
    played = None
    with hpo.Client(str(api.client.base_url), api.token("ada")) as client:
        study = client.submit(hpo.parse_study(spec(name)))
        played = later(lambda: play(api, name), seconds=0)
        assert client.submit(hpo.parse_study(spec(name))).wait(poll=0.1).state == "finished"
        assert study.name in repr(study)
    played.join()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_nobody_listens(kind):
    quick = RetryPolicy(attempts=2, first_seconds=0.01)
    with client_of(kind, "http://127.0.0.1:9", "lb_token", retries=quick) as client:
        with pytest.raises(
            errors.UnreachableError,
            match=r"cannot reach http://127.0.0.1:9 .*is `hpo serve` running",
        ):
            client.study("digits").status()
        with pytest.raises(errors.UnreachableError, match="2 attempts"):
            list(client.study("digits").events())


def test_other_documents(client):
    assert client.document("me")["owner"] == "ada"
    assert "local" in [machine["name"] for machine in client.document("machines")["machines"]]
