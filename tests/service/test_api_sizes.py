"""Sizes of model and training, and what trainings buy, through the API and both clients."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from api_server import add_trials, served, spec_of
from client_kinds import client_of

import hpo
from hpo.cli.assistant.sources import StudyDatabase, StudyServer
from hpo.cli.output import remote
from hpo.client.records import RemoteForecast, RemoteTrial
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, TrialResult, TrialState
from tests.sized_study import SIZED

pytestmark = pytest.mark.fit


def write(store, name: str = "sized") -> None:
    """Three trials of each batch and combination of sizes, by a law; at the largest three more."""
    study = store.study(name)
    seeds = itertools.count()
    rungs = [*itertools.product((16, 32), (1024, 2048), (16, 32, 64)), (32, 2048, 64)]
    for width, samples, batch in rungs:
        for factor in (0.5, 1.0, 2.0):
            rate = 0.01 * (batch / 16) ** 0.5 * factor * (1 + 0.001 * next(seeds))
            settings = dataclasses.replace(
                TrainingSettings(optimizer="adamw", learning_rate=rate),
                own={"width": width, "training_samples": samples},
            )
            [trial] = store.add_trials(
                study.id,
                [NewTrial(global_batch_size=batch, seed=next(seeds), settings=settings.to_dict())],
            )
            loss = (
                0.5
                + (width / 16) ** -0.4
                + (samples / batch**0.3 / 1024) ** -0.3
                + 0.1 * (factor - 1) ** 2
            )
            store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.CENSORED,
                    epochs=samples / 2048,
                    seconds=samples / 1000 * width / 16,
                    steps=samples // batch,
                    best_metric=loss,
                    final_metric=loss,
                ),
            )


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tmp_path_factory.mktemp("sizes"), limits={"check_seconds": 60}) as api:
        answer = api.submit("sized", spec=json.dumps(SIZED))
        assert answer.status_code == 201, answer.text
        write(api.store)
        api.submit("bowl")
        add_trials(api.store, "bowl", 3)
        yield api


@pytest.fixture(scope="module")
def expected(api):
    """What `hpo.forecast` and `hpo.designs` tell of the same trials."""
    result = hpo.read_study("sized", api.store.url)
    made = hpo.forecast(result, 128)
    return made, hpo.designs(result, made)


def test_a_study_names_the_sizes_of_its_rungs(api):
    shown = api.call("GET", "/studies/sized").json()
    assert shown["ladder"] == [16, 32, 64]
    assert shown["sizes"] == {"width": [16, 32], "samples": [1024, 2048]}
    assert [each["global_batch_size"] for each in shown["rungs"]] == [16, 32, 64]
    assert [each["trials"]["censored"] for each in shown["rungs"]] == [12, 12, 15]
    combinations = [
        {"width": 16, "samples": 1024},
        {"width": 16, "samples": 2048},
        {"width": 32, "samples": 1024},
        {"width": 32, "samples": 2048},
    ]
    for rung in shown["rungs"]:
        assert [each["sizes"] for each in rung["by_sizes"]] == combinations
        most = 6 if rung["global_batch_size"] == 64 else 3
        assert [each["trials"] for each in rung["by_sizes"]] == [
            {"censored": 3},
            {"censored": 3},
            {"censored": 3},
            {"censored": most},
        ]


def test_where_the_batch_alone_grows_there_are_no_sizes(api):
    shown = api.call("GET", "/studies/bowl").json()
    assert shown["sizes"] == {}
    assert [each["by_sizes"] for each in shown["rungs"]] == [[]]
    assert api.call("GET", "/studies/bowl/trials/0").json()["sizes"] == {}


def test_each_trial_names_its_sizes(api):
    page = api.call("GET", "/studies/sized/trials?limit=500").json()["trials"]
    assert len(page) == 39
    for trial in page:
        own = trial["settings"]
        assert trial["sizes"] == {"width": own["width"], "samples": own["training_samples"]}
    one = api.call("GET", "/studies/sized/trials/0").json()
    assert one["sizes"] == {"width": 16, "samples": 1024} == page[0]["sizes"]


def test_a_trial_that_is_asked_for_names_its_sizes(tmp_path):
    with served(tmp_path, limits={"check_seconds": 60}) as api:
        assert api.submit("sized", spec=json.dumps(SIZED)).status_code == 201
        body = {"key": "0123456789abcdef", "holder": "here", "lease_seconds": 60}
        asked = api.call("POST", "/studies/sized/trials", json=body)
        assert asked.status_code == 201, asked.text
        trial, cheapest = asked.json()["trial"], {"width": 16, "samples": 1024}
        assert trial["sizes"] == cheapest
        path = f"/studies/sized/trials/{trial['number']}/release"
        assert api.call("POST", path, json={"key": body["key"]}).json()["sizes"] == cheapest


def test_forecasts_name_the_sizes_that_they_are_for(api, expected):
    made, _ = expected
    (told,) = api.call("GET", "/studies/sized/forecast").json()["forecasts"]
    assert told["global_batch_size"] == 128
    assert told["sizes"] == {"width": 64, "samples": 8192} == made.to_dict()["sizes"]
    assert told["best"]["median"] == pytest.approx(made.numbers.best.interval.median)


def test_designs_are_those_of_hpo_design(api, expected):
    told = api.call("GET", "/studies/sized/designs")
    assert told.status_code == 200, told.text
    _, found = expected
    assert told.json() == json.loads(json.dumps(found.to_dict()))
    assert told.json()["full_scale"] == {"global_batch_size": 128, "width": 64, "samples": 8192}
    (own,) = [each for each in told.json()["designs"] if each["own"]]
    assert own["trainings"] == 39
    assert own["largest"] == {"global_batch_size": 64, "width": 32, "samples": 2048}
    assert api.call("GET", "/studies/sized/designs").content == told.content


def test_designs_that_cannot_be(api):
    nameless = api.call("GET", "/studies/bowl/designs")
    assert nameless.status_code == 422
    assert "'bowl' has no full_scale batch size" in nameless.json()["error"]["message"]
    assert "full_scale" in nameless.json()["error"]["way_out"]
    api.submit("early", spec=spec_of("early", full_scale={"global_batch_size": 256}))
    early = api.call("GET", "/studies/early/designs")
    assert (early.status_code, early.json()["error"]["kind"]) == (409, "no_evidence")
    assert api.call("GET", "/studies/nothing/designs").status_code == 404


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_clients_read_sizes_and_designs(api, expected, kind):
    url = str(api.client.base_url)
    with client_of(kind, url, api.token("ada")) as client:
        study = client.study("sized")
        trials = study.trials(global_batch_size=64)
        assert [dict(each.sizes) for each in trials[:4]] == [{"width": 16, "samples": 1024}] * 3 + [
            {"width": 16, "samples": 2048}
        ]
        assert "sizes" not in trials[0].figures
        assert client.study("bowl").trials()[0].sizes == {}
        assert study.forecast(128).sizes == {"width": 64, "samples": 8192}
        found = expected[1].worthwhile()
        told = study.designs()
        assert [(each.trainings, each.own) for each in told] == [
            (each.trainings, each.own) for each in found
        ]
        for one, other in zip(told, found, strict=True):
            assert one.cost == pytest.approx(other.cost)
            assert one.accelerator_hours == pytest.approx(other.hours)
            assert one.interval.to_dict() == pytest.approx(other.interval.to_dict())
            assert (one.factor, one.regret) == pytest.approx((other.factor, other.regret))
            assert one.largest == other.largest


def test_a_server_that_names_no_sizes_is_understood(api):
    """As an earlier release's."""
    document = api.call("GET", "/studies/sized/trials/0").json()
    del document["sizes"]
    assert RemoteTrial.of(document).sizes == {}
    (told,) = api.call("GET", "/studies/sized/forecast").json()["forecasts"]
    del told["sizes"]
    assert RemoteForecast.of(told).sizes == {}


def test_an_assistant_is_told_the_same_by_database_and_server(api, expected):
    pytest.importorskip("mcp")
    from hpo.cli.assistant.tools import StudyTools

    with hpo.Client(str(api.client.base_url), api.token("ada")) as client:
        for source in (StudyDatabase(api.store.url), StudyServer(client)):
            assert source.trials("sized")[0]["sizes"] == {"width": 16, "samples": 1024}
            told = StudyTools(source).design("sized")
            assert json.loads(json.dumps(told)) == json.loads(json.dumps(expected[1].to_dict()))
        why = StudyTools(StudyServer(client)).explain_trust("sized")
        assert why["sizes"] == {"width": 64, "samples": 8192}
        assert why["rungs"][0]["by_sizes"][0]["sizes"] == {"width": 16, "samples": 1024}
        assert "sizes" not in StudyDatabase(api.store.url).trials("bowl")[0]


def test_the_terminal_shows_a_row_for_each_combination(api, capsys):
    with hpo.Client(str(api.client.base_url), api.token("ada")) as client:
        remote.show_status(client.study("sized").status())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["batch", "size", "width", "samples", "trials", "censored"] in lines
    assert [line for line in lines if line[:1] == ["64"]] == [
        ["64", "16", "1024", "3", "3"],
        ["64", "16", "2048", "3", "3"],
        ["64", "32", "1024", "3", "3"],
        ["64", "32", "2048", "6", "6"],
    ]


def test_the_description_says_where_sizes_stand(api):
    schemas = api.app.openapi()["components"]["schemas"]
    assert schemas["TrialAnswer"]["properties"]["sizes"]["type"] == "object"
    assert "by_sizes" in schemas["RungAnswer"]["required"]
    assert "sizes" in schemas["StudyDetail"]["properties"]
    assert "sizes" in schemas["ForecastAnswer"]["properties"]
    assert "/api/v1/studies/{name}/designs" in api.app.openapi()["paths"]
