"""Figures that can enter over the network, at and beyond every bound and in every order, affect nobody else."""

import itertools
from typing import Any

import pytest
from api_server import path_of, served, spec_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_api_ask_tell import BOWL, about, ask, point  # type: ignore[import-not-found]

from storage.figures import LEAST, MOST, MOST_SAMPLES, MOST_WHOLE
from storage.records import StudyState

EDGES = [0, 1, -1, LEAST, LEAST / 2, 1e-300, MOST, MOST + 1, MOST_SAMPLES, MOST_SAMPLES + 1]
EDGES += [MOST_WHOLE, MOST_WHOLE + 1, 2**53, 2**63 - 1, 2**63, 1e18, 1e19, 1e308, True, "7", None]
POINT = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(EDGES) | st.integers(0, 40) | st.floats(0, 40)
        for name in point(4, 0.5)
    },
)
OUTCOME = st.fixed_dictionaries(
    {"state": st.sampled_from(["reached", "censored", "diverged"])},
    optional={
        name: st.sampled_from(EDGES) | st.floats(0, 4)
        for name in ("epochs_to_target", "epochs", "steps", "seconds", "best_metric")
    },
)
numbers = itertools.count()


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        assert api.submit(spec=BOWL, for_agents=True).status_code == 201
        yield api


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with served(tmp_path_factory.mktemp("figures")) as api:
        other = spec_of("other")
        assert api.submit("other", spec=other, owner="eve").status_code == 201
        yield api


def others_see_everything(api):
    """What another owner meets: the list of all studies, their own, a stream of all events, a worker for it."""
    for path in (path_of("other").rpartition("/")[0], path_of("other")):
        answer = api.call("GET", path, owner="eve")
        assert answer.status_code == 200, answer.text
    assert {each.study.name for each in api.store.page_studies()} >= {"other"}
    headers = {"Authorization": f"Bearer {api.token('eve')}"}
    with api.client.stream("GET", "/api/v1/events?after=0", headers=headers) as stream:
        assert any("event: log" in text for text in itertools.islice(stream.iter_text(), 3))
    lease = api.store.claim_study("worker", lease_seconds=30)
    assert lease is not None and lease.study.name == "other"  # those for agents wait for no worker
    api.store.release_study(lease, StudyState.QUEUED)


@pytest.mark.medium
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(points=st.lists(POINT, max_size=3), outcome=st.none() | OUTCOME)
def test_whatever_is_told_nothing_breaks(shared, points, outcome):
    key = f"{next(numbers):016d}"
    name = f"bowl-{key}"
    submitted = shared.submit(name, spec=BOWL.replace("bowl", name), for_agents=True)
    assert submitted.status_code == 201, submitted.text
    path = f"{path_of(name)}/trials"
    number = shared.call("POST", path, json={"key": key}).json()["trial"]["number"]
    told = [{**point(4 * place, 0.5), **each} for place, each in enumerate(points, 1)]
    for each in (told, told[::-1]):
        told_now: dict[str, Any] = {"key": key, "points": each}
        assert shared.call("POST", f"{path}/{number}/points", json=told_now).status_code < 500
    base = {"epochs": 1.0, "steps": 16, "seconds": 1.0}
    body: dict[str, Any] = {
        "key": key,
        **({} if outcome is None else {"outcome": {**base, **outcome}}),
    }
    assert shared.call("POST", f"{path}/{number}/end", json=body).status_code < 500
    for read in ("", "/trials", f"/trials/{number}", "/convergence?trial=0&column=metric"):
        assert shared.call("GET", f"{path_of(name)}{read}").status_code == 200
    others_see_everything(shared)
    assert shared.call("DELETE", path_of(name)).status_code < 500


@pytest.mark.parametrize(
    "figures",
    [{"samples": 2**63 - 1}, {"seconds": 1e308}, {"epochs": 1e308}, {"step": 2**63 - 1}],
    ids=str,
)
def test_a_figure_beyond_its_bounds_is_refused(api, figures):
    ask(api)
    answer = about(api, "points", points=[{**point(4, 0.5), **figures}])
    assert answer.status_code == 422 and next(iter(figures)) in answer.text


@pytest.mark.parametrize(
    ("points", "rule"),
    [
        ([point(4, 0.5), point(4, 0.4)], "steps must rise"),
        ([point(8, 0.5), point(4, 0.4)], "steps must rise"),
        ([point(4, 0.5), {**point(8, 0.4), "epochs": 0.01}], "epochs must not fall"),
        ([point(4, 0.5), {**point(8, 0.4), "seconds": 0.5}], "seconds must not fall"),
        ([point(4, 0.5), {**point(8, 0.4), "samples": 1}], "samples must not fall"),
        ([point(4, 0.5, batch=32)], "global_batch_size must be the trial's 16"),
    ],
)
def test_points_that_are_no_curve_are_refused(api, points, rule):
    ask(api)
    answer = about(api, "points", points=points)
    assert answer.status_code == 422 and rule in answer.text
    assert api.store.points(1) == []


def test_points_go_on_from_those_before(api):
    ask(api)
    assert about(api, "points", points=[point(8, 0.5)]).status_code == 200
    assert about(api, "points", points=[point(8, 0.5)]).status_code == 200  # the answer was lost
    fallen = {**point(12, 0.4), "epochs": 0.1}
    answer = about(api, "points", points=[fallen])
    assert (
        answer.status_code == 422 and "epochs must not fall, but got 0.1 after 0.5" in answer.text
    )


@pytest.mark.parametrize(
    "outcome",
    [
        {"epochs_to_target": 1e-300, "epochs": 1.0},
        {"epochs_to_target": 0.5, "epochs": 1e308},
        {"epochs_to_target": 0.5, "epochs": 1.0},  # no evaluation says so
        {"epochs_to_target": 0.25, "epochs": 1.0},  # the one there is above the target
    ],
)
def test_an_outcome_is_not_believed_without_its_evaluation(api, outcome):
    ask(api)
    told = {"state": "reached", "steps": 16, "seconds": 1.0, **outcome}
    answer = about(api, "end", points=[point(4, 0.5)], outcome=told)
    assert answer.status_code == 422, answer.text
    assert str(api.store.trial(1, 0).state) == "running"
