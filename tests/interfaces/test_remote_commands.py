"""`hpo submit`, `status`, `cancel` and `logs` against a real server: tables, JSON, exit codes."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from storage.records import StudyState

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
from api_server import add_trials, served, spec_of

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture
def study(request, api, tmp_path, monkeypatch):
    """The name of a study of this test's own; study.yaml holds it, and the environment names the server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_SERVER", str(api.client.base_url))
    monkeypatch.setenv("HPO_TOKEN", api.token("ada"))
    name = request.node.name.removeprefix("test_")
    (tmp_path / "study.yaml").write_text(spec_of(name))
    return name


def call(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_submit_queues_one_study(study, api):
    first = call("submit", "study.yaml", "--priority", 2).stdout
    assert first == f"{study} is queued: noisy_quadratic, loss ≤ 0.1; owner ada, priority 2\n"
    assert call("submit", "study.yaml", "--priority", 2).stdout == first
    document = json.loads(call("status", study, "--json").stdout)
    assert (document["state"], document["priority"], document["spec"]) == (
        "queued",
        2,
        spec_of(study),
    )


def test_budgets_are_handed_on(study):
    told = json.loads(
        call(
            "submit", "study.yaml", "--max-samples", 1000, "--max-accelerator-hours", 0.5, "--json"
        ).stdout
    )
    assert (told["max_samples"], told["max_accelerator_hours"]) == (1000, 0.5)


def test_status_lists_what_there_is(study, api):
    call("submit", "study.yaml")
    add_trials(api.store, study, 3)
    (row,) = [line for line in call("status").stdout.splitlines() if study in line]
    assert row.split()[:6] == [study, "queued", "ada", "0", "3", "3"]
    listed = json.loads(call("status", "--json", "--owner", "ada", "--state", "queued").stdout)
    assert study in [each["name"] for each in listed]
    assert json.loads(call("status", "--json", "--owner", "nobody").stdout) == []
    assert (
        call("status", "--owner", "nobody").stdout
        == "no studies; `hpo submit STUDY.yaml` queues one\n"
    )
    one = call("status", study).stdout
    assert "fewest epochs to target: 2" in one
    assert one.splitlines()[-2].split() == [] or "16" in one


def test_cancel(study):
    call("submit", "study.yaml")
    assert f"{study} is cancelled" in call("cancel", study).stdout
    assert json.loads(call("cancel", study, "--json").stdout)["state"] == "cancelled"


def test_logs(study, api):
    call("submit", "study.yaml")
    api.store.add_event(api.store.study(study).id, "noted", "half of it", {"done": 0.5})
    submitted, noted = call("logs", study).stdout.splitlines()
    assert submitted.split()[2] == "submitted"
    assert noted.split()[2:] == ["noted", "half", "of", "it"]
    events = [json.loads(line) for line in call("logs", study, "--json").stdout.splitlines()]
    assert (events[1]["kind"], events[1]["data"]) == ("noted", {"done": 0.5})
    assert call("logs", study, "--after", events[0]["id"]).stdout.splitlines() == [noted]
    assert call("logs", study, "--after", events[1]["id"]).stdout == ""


def ending(api, study, state):
    def end():
        time.sleep(0.3)
        api.store.add_event(api.store.study(study).id, "noted", "on its way")
        time.sleep(0.3)
        api.store.set_study_state(api.store.study(study).id, state, "so it is")

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def test_logs_follow_to_the_end(study, api):
    call("submit", "study.yaml")
    thread = ending(api, study, StudyState.FINISHED)
    assert "on its way" in call("logs", study, "--follow").stdout
    thread.join()


@pytest.mark.parametrize(("state", "code"), [(StudyState.FINISHED, 0), (StudyState.FAILED, 1)])
def test_submit_waits_on_demand(study, api, state, code):
    call("submit", "study.yaml")
    thread = ending(api, study, state)
    result = call("submit", "study.yaml", "--wait", code=code)
    thread.join()
    assert f"{study} is {state}" in result.stdout
    assert "so it is" in result.stdout
    assert "on its way" in result.stderr
    assert "on its way" not in result.stdout


def test_what_is_wrong_is_said_on_stderr(study, monkeypatch):
    Path("bad.yaml").write_text(spec_of(study).replace("budget", "bugdet"))
    refused = call("submit", "bad.yaml", code=2)
    assert (refused.stdout, "did you mean 'budget'" in refused.stderr) == ("", True)
    assert "bad.yaml, line" in refused.stderr
    assert "there is no study 'none'" in call("status", "none", code=2).stderr
    Path("foreign.yaml").write_text(spec_of(study).replace("noisy_quadratic", "os:system"))
    assert "this server allows" in call("submit", "foreign.yaml", code=2).stderr
    monkeypatch.setenv("HPO_TOKEN", "lb_" + "x" * 43)
    assert "this token is unknown" in call("status", code=2).stderr
    monkeypatch.delenv("HPO_TOKEN")
    assert "no token for 127.0.0.1" in call("status", code=2).stderr
    monkeypatch.delenv("HPO_SERVER")
    assert "no server given; give its URL, or set HPO_SERVER" in call("status", code=2).stderr


def test_options_come_before_the_environment(study, api, monkeypatch):
    call("submit", "study.yaml")
    monkeypatch.setenv("HPO_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("HPO_TOKEN", "lb_wrong")
    given = ("--server", api.client.base_url, "--token", api.token("bob", "read"))
    assert study in call("status", study, *given).stdout
    assert "needs the scope submit" in call("cancel", study, *given, code=2).stderr
