"""Ask and tell over REST and with the client: leases, verdicts, repeated calls, and permissions."""

import dataclasses
import math

import pytest
from api_server import path_of, served, spec_of

import hpo
from hpo.client.agent import AgentOptions, TrialAgent
from hpo.errors import ConflictError, NotAllowedError, TrialLostError
from trainers.report import ConvergencePoint

pytestmark = pytest.mark.medium

BOWL = spec_of(
    "bowl",
    data={"modes": 20, "noise_scale": 0.5, "train_samples": 256},
    target={"metric": "loss", "at_most": 0.1},
    ladder=[16, 32],
    budget={"trials": 6, "epochs_per_trial": 20},
)
KEY = "0123456789abcdef"


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        assert api.submit(spec=BOWL, for_agents=True).status_code == 201
        yield api


def ask(api, key=KEY, **more):
    return api.call("POST", f"{path_of('bowl')}/trials", json={"key": key, **more})


def about(api, call, number=0, key=KEY, **more):
    path = f"{path_of('bowl')}/trials/{number}/{call}"
    return api.call("POST", path, json={"key": key, **more})


def point(step, metric, batch=16):
    made = ConvergencePoint(
        step, step * batch, step * batch / 256, 1.0, 1.0, metric, metric, 0.1, batch
    )
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(made).items()
    }


def test_a_trial_from_the_first_call_to_the_last(api):
    shown = api.call("GET", path_of("bowl")).json()
    assert (shown["state"], shown["for_agents"]) == ("queued", True)
    answer = ask(api, holder="node 7")
    assert answer.status_code == 201
    document = answer.json()
    assert document["trial"]["number"] == 0 and document["trial"]["state"] == "running"
    assert document["job"]["workload"] == "noisy_quadratic" and not document["ended"]
    assert document["job"]["settings"] == document["trial"]["settings"]
    assert ask(api).json()["trial"]["number"] == 0  # the answer was lost
    points = [point(4, 0.5), point(8, math.nan)]
    assert about(api, "points", points=points).json() == {"state": "running", "reason": ""}
    assert about(api, "points").json()["state"] == "running"
    curve = api.call("GET", f"{path_of('bowl')}/convergence?trial=0&column=metric").json()
    assert curve["curves"][0]["columns"]["metric"] == [0.5, None]
    outcome = {
        "state": "reached",
        "epochs_to_target": 0.75,
        "epochs": 0.75,
        "steps": 12,
        "seconds": 2.0,
    }
    last = {
        "points": [point(12, 0.05)],
        "outcome": {**outcome, "best_metric": 0.05, "final_metric": 0.05},
    }
    ended = about(api, "end", **last)
    assert ended.status_code == 200 and ended.json()["epochs_to_target"] == 0.75
    assert about(api, "end", state="failed").json() == ended.json()  # what was said first holds
    assert api.store.trial(1, 0).samples == 192
    lost = about(api, "points")
    assert (lost.status_code, lost.json()["error"]["kind"]) == (409, "trial_lost")


def test_giving_a_trial_back(api):
    ask(api)
    assert about(api, "release").json()["state"] == "queued"
    assert ask(api, key="another-key-of-16").json()["trial"]["number"] == 0
    assert about(api, "points").status_code == 409
    assert about(api, "release").status_code == 409


@pytest.mark.parametrize(
    ("call", "body", "said"),
    [
        (
            "end",
            {"outcome": {"state": "reached", "epochs": 1, "steps": 1, "seconds": 1}},
            "if and only if",
        ),
        (
            "end",
            {"outcome": {"state": "lost", "epochs": 1, "steps": 1, "seconds": 1}},
            "outcome.state",
        ),
        (
            "end",
            {
                "outcome": {
                    "state": "censored",
                    "epochs": 1,
                    "steps": 1,
                    "seconds": 1,
                    "measures": {"top5\x1b[2J": 0.9},
                }
            },
            "printable",
        ),
        ("end", {"state": "pruned"}, "state"),
        ("points", {"points": [{"step": 0}]}, "points.0.step"),
        (
            "points",
            {"points": [{**point(4, 0.5), "learning_rate": None}]},
            "points.0.learning_rate",
        ),
        ("points", {"lease_seconds": 0}, "lease_seconds"),
        ("points", {"key": "short"}, "key"),
        ("release", {"more": 1}, "more"),
    ],
)
def test_what_the_api_does_not_take(api, call, body, said):
    ask(api)
    answer = about(api, call, **body)
    assert answer.status_code == 422 and said in answer.json()["error"]["message"]


def test_an_end_without_an_evaluation_is_refused_and_a_trial_that_is_not_there_not_found(api):
    ask(api)
    answer = about(api, "end")
    assert answer.status_code == 409 and "report at least one" in answer.json()["error"]["message"]
    assert about(api, "points", number=99).status_code == 404
    assert about(api, "end", number=99).status_code in (404, 409)


def test_only_the_owner_may_train(api):
    path = f"{path_of('bowl')}/trials"
    assert api.call("POST", path, json={"key": KEY}, scope="read").status_code == 403
    assert api.call("POST", path, json={"key": KEY}, owner="bob").status_code == 403
    assert api.call("POST", path, json={"key": KEY}, owner="root", scope="admin").status_code == 201
    with (
        hpo.Client(str(api.client.base_url), api.token("bob")) as client,
        pytest.raises(NotAllowedError),
    ):
        client.study("bowl").ask_tell().ask()


def test_a_cancelled_study_stops_its_trials_and_refuses_new_ones(api):
    ask(api)
    assert api.call("POST", f"{path_of('bowl')}/cancel").json()["state"] == "cancelled"
    assert about(api, "points").json()["state"] == "queued"
    with (
        hpo.Client(str(api.client.base_url), api.token("ada")) as client,
        pytest.raises(ConflictError, match="is cancelled"),
    ):
        client.study("bowl").ask_tell().ask()
    assert api.call("POST", f"{path_of('bowl')}/resume").status_code == 200
    assert ask(api, key="another-key-of-16").status_code == 201


def test_the_handle_of_a_study_trains_it_to_its_end(api, tmp_path):
    with hpo.Client(str(api.client.base_url), api.token("ada")) as client:
        study = client.study("bowl")
        with study.ask_tell() as asking:
            with asking.ask() as trial:
                assert trial.report(epochs=1, steps=16, metric=0.5)
                assert not trial.report(epochs=2, steps=32, metric=0.05)
            first = asking.ask()
            api.store.requeue_running(1)  # another took the study over
            with pytest.raises(TrialLostError, match="no longer yours"):
                first.tell("failed")
        done = TrialAgent(
            study.ask_tell(background=True), "bowl", AgentOptions(tmp_path / "agent")
        ).run()
        assert done.trials == 5 == len(done.overheads)
        assert study.status().state == "finished"
        states = [trial.state for trial in study.trials()]
        assert len(states) == 6 and states[0] == "reached"
        assert asking.ask() is None and "all 6 trials have ended" in asking.message
        assert [event.kind for event in study.logs()][-1] == "finished"


def test_an_agent_gives_back_what_it_has_when_it_is_asked_to_stop(api, tmp_path):
    with hpo.Client(str(api.client.base_url), api.token("ada")) as client:
        options = AgentOptions(tmp_path / "agent", trials=2)
        assert TrialAgent(client.study("bowl").ask_tell(), "bowl", options).run().trials == 2
        agent = TrialAgent(
            client.study("bowl").ask_tell(), "bowl", AgentOptions(tmp_path / "agent")
        )
        advance = agent._run.advance

        def stopping():
            agent.stop()
            return advance()

        agent._run.advance = stopping
        assert agent.run().trials == 0
        assert [trial.state for trial in client.study("bowl").trials()][2] == "queued"
        assert (tmp_path / "agent" / "agents" / "bowl" / "2.pt").exists()
