"""What a database holds besides finished trials changes a forecast by its rule, the same in every interface."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from api_server import served, spec_of
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.service.forecast_cache import ForecastCache
from search_spaces.settings import TrainingSettings
from storage.records import (
    ConvergencePoint,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewTrial,
    TrialResult,
    TrialState,
    Trust,
)

pytestmark = [pytest.mark.fit, pytest.mark.processes]

PREDICTED = (10.0, 8.0, 12.5)  # median, low, high
SD = math.log(1.25) / 1.6448536
FULL_SCALE = 256


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        yield api


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The forecast of the sweep in a storage that holds nothing else; its laws are those of the sweep everywhere."""
    with served(tmp_path_factory.mktemp("alone")) as api:
        add_sweep(api, "bowl")
        return hpo.forecast(hpo.read_study("bowl", api.store.url), FULL_SCALE)


def forecast_of(api, name, posterior=None):
    return hpo.forecast(hpo.read_study(name, api.store.url), FULL_SCALE, posterior).to_dict()


def forecast_of_every_face(api, name):
    """The forecast at full scale, which is the same document from Python, the command line and the service."""
    from_python = forecast_of(api, name)
    called = CliRunner().invoke(
        main, ["forecast", name, "--at", str(FULL_SCALE), "--storage", api.store.url, "--json"]
    )
    assert called.exit_code == 0, called.output
    answer = api.call("GET", f"/studies/{name}/forecast")
    assert answer.status_code == 200, answer.text
    assert (
        json.loads(called.stdout)
        == answer.json()["forecasts"]
        == [json.loads(json.dumps(from_python))]
    )
    return from_python


def add_sweep(api, name, noise_scales=None):
    """Trials at 16, 32 and 64; ``noise_scales`` are those of the points of each that reached the target."""
    api.submit(name, spec=spec_of(name, full_scale={"global_batch_size": FULL_SCALE}))
    study, scatter = api.store.study(name), np.random.default_rng(0)
    for batch in (16, 32, 64):
        for factor in (0.3, 0.6, 1.0, 1.5, 3.0, 30.0):
            settings = TrainingSettings(
                learning_rate=0.004 * batch * factor, normalization_batch_size=1
            ).to_dict()
            [trial] = api.store.add_trials(
                study.id, [NewTrial(global_batch_size=batch, seed=0, settings=settings)]
            )
            api.store.start_trials([trial.id])
            diverged = factor == 30.0
            epochs = (
                2
                * (1 + batch / 64)
                * np.exp(0.3 * np.log(factor) ** 2 + 0.03 * scatter.standard_normal())
            )
            result = (
                TrialResult(state=TrialState.DIVERGED, epochs=0.5, reason="the loss blew up")
                if diverged
                else TrialResult(
                    state=TrialState.REACHED,
                    epochs_to_target=epochs,
                    epochs=epochs,
                    seconds=epochs,
                    steps=round(4096 * epochs / batch),
                    best_metric=0.09,
                    resolution_epochs=0.1,
                )
            )
            measured = [1e9] if diverged else noise_scales or []
            api.store.finish_trial(
                trial.id, result, [point(step, each) for step, each in enumerate(measured, 1)]
            )


def point(step, noise_scale):
    return ConvergencePoint(
        step=step,
        samples=16 * step,
        epochs=0.1 * step,
        seconds=1.0,
        train_loss=1.0,
        loss=1.0,
        metric=1.0,
        learning_rate=0.1,
        global_batch_size=16,
        gradient_noise_scale=noise_scale,
    )


def add_outcome(api, study_name, batch, epochs, state=TrialState.REACHED):
    """A plan for which PREDICTED was forecast, and what one launch of it did; returns the plan's id."""
    study = api.store.study(study_name)
    ends = dict(zip(("epochs_median", "epochs_low", "epochs_high"), PREDICTED, strict=True))
    forecast = api.store.add_forecast(
        NewForecast(study_id=study.id, global_batch_size=batch, trust=Trust.HIGH, reason="", **ends)
    )
    plan = api.store.add_plan(
        NewPlan(
            study_id=study.id,
            forecast_id=forecast.id,
            machine="local",
            nodes=1,
            workers=1,
            global_batch_size=batch,
            local_batch_size=batch,
            settings=TrainingSettings(learning_rate=0.5, normalization_batch_size=1).to_dict(),
            trust=Trust.HIGH,
            directory="plans/earlier",
            **ends,
        )
    )
    launch(api, plan.id, epochs, state)
    return plan.id


def launch(api, plan_id, epochs, state):
    api.store.add_outcome(
        NewOutcome(
            plan_id=plan_id,
            seed=0,
            backend="torch",
            workers=1,
            state=state,
            epochs=epochs,
            seconds=1.0,
            epochs_to_target=epochs if state is TrialState.REACHED else None,
        )
    )


def half_widths(forecast):
    epochs = forecast["epochs_to_target"]
    return [math.log(epochs["high"] / epochs["median"]), math.log(epochs["median"] / epochs["low"])]


@pytest.mark.parametrize(
    ("ended", "held", "scale"),
    [
        ([("reached", -2.0), ("reached", 2.0)] * 3, 0, math.sqrt((6 + 6 * 2**2) / (6 + 6))),
        ([("reached", 0.0), ("reached", 0.5)], 2, math.sqrt((6 + 0.5**2) / (6 + 2))),
        ([("diverged", 0.0)], 0, math.sqrt((6 + 2.5**2) / (6 + 1))),
        ([("failed", 0.0)], None, 1.0),
    ],
    ids=["two sd off", "well met", "diverged", "crashed"],
)
def test_how_earlier_forecasts_held_scales_the_next_interval(api, alone, ended, held, scale):
    add_sweep(api, "bowl")
    api.submit("earlier")
    for state, error in ended:
        add_outcome(api, "earlier", 128, PREDICTED[0] * math.exp(error * SD), TrialState(state))
    before, after = alone.to_dict(), forecast_of(api, "bowl", alone.posterior)
    assert after["epochs_to_target"]["median"] == pytest.approx(
        before["epochs_to_target"]["median"]
    )
    assert half_widths(after) == pytest.approx([scale * each for each in half_widths(before)])
    count = 0 if held is None else len(ended)
    assert after["calibration"] == {
        "forecasts": count,
        "held": held or 0,
        "scale": pytest.approx(scale),
    }
    doubted = count >= 3
    assert ("only 0 of 6 earlier forecasts held" in after["reason"]) == doubted
    assert after["trust"] == ("low" if doubted else before["trust"])


def test_a_run_that_crashed_takes_nothing_from_those_beside_it(api, alone):
    add_sweep(api, "bowl")
    api.submit("earlier")
    plan_id = add_outcome(api, "earlier", 128, PREDICTED[0] * math.exp(0.5 * SD))
    launch(api, plan_id, 1.0, TrialState.FAILED)
    told = forecast_of(api, "bowl", alone.posterior)["calibration"]
    assert told == {
        "forecasts": 1,
        "held": 1,
        "scale": pytest.approx(math.sqrt((6 + 0.5**2) / (6 + 1))),
    }


def test_every_face_tells_how_earlier_forecasts_held(api, alone):
    add_sweep(api, "bowl")
    api.submit("earlier")
    answer = api.call("GET", "/studies/bowl/forecast")
    assert answer.json()["forecasts"] == [json.loads(json.dumps(alone.to_dict()))]
    add_outcome(api, "earlier", 128, PREDICTED[0] * math.exp(2 * SD))
    after = forecast_of_every_face(api, "bowl")
    assert half_widths(after) == pytest.approx(
        [math.sqrt(10 / 7) * each for each in half_widths(alone.to_dict())]
    )


def test_what_a_study_did_at_a_batch_does_not_change_its_forecast_for_it(api, alone):
    add_sweep(api, "bowl")
    add_outcome(api, "bowl", FULL_SCALE, 40.0)
    assert forecast_of(api, "bowl") == alone.to_dict()
    add_outcome(api, "bowl", 2 * FULL_SCALE, 40.0)
    assert forecast_of(api, "bowl", alone.posterior)["calibration"]["forecasts"] == 1


@pytest.mark.slow  # tests/extrapolation has the rule
def test_a_study_with_the_id_of_a_deleted_one_gets_its_own_forecasts(api):
    cache = ForecastCache()
    api.submit("again")
    first = api.store.study("again")
    fitted = cache.fitted(api.store, first)
    assert cache.fitted(api.store, first) is fitted
    api.store.delete_study(first.id)
    api.submit("again")
    second = api.store.study("again")
    assert (second.id, second.spec) == (first.id, first.spec)
    assert cache.fitted(api.store, second).result.study == second
    api.store.delete_study(second.id)


def test_noise_scales_that_trainings_measured_are_evidence_on_the_critical_batch_size(api, alone):
    add_sweep(api, "measured", [None, 2000.0, 9000.0, 3000.0])
    noise_scale = (
        3000.0  # the median over the points that have one; those of diverged trials do not count
    )
    result = hpo.read_study("measured", api.store.url)
    reached = [trial.id for trial in result.trials if trial.state is TrialState.REACHED]
    assert result.noise_scales == dict.fromkeys(reached, noise_scale)
    assert len(reached) == 15
    without = alone.numbers.laws["epochs_to_target"]["B_crit"].median
    measured = forecast_of_every_face(api, "measured")["laws"]["epochs_to_target"]["B_crit"][
        "median"
    ]
    assert alone.posterior.model.log_noise_scale is None
    assert 1.2 * without < measured < noise_scale
