"""What a forecast has besides its interval: chances, sensitivity, calibration; and the rate's and momentum's laws."""

import numpy as np
import pytest
from ladders import Truth, sweep

from hpo.errors import EvidenceError
from hpo.extrapolation.calibration import NARROWEST, PastForecast, calibrate_forecasts
from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from hpo.extrapolation.evidence.stored import noise_scales, samples_per_epoch
from hpo.extrapolation.forecast import epochs_band, forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws import laws
from hpo.extrapolation.laws.response import LOST_BY_CHANCE
from storage.records import Convergence, Trial, TrialState

pytestmark = pytest.mark.fit

TRUTH = Truth()
RATE = ScaledSetting("learning_rate", "log", 0.01, 1.28)


@pytest.fixture(scope="module")
def fitted():
    return fit(
        sweep(TRUTH, np.random.default_rng(0), settings=12, seeds=1), rng=np.random.default_rng(1)
    )


@pytest.fixture(scope="module")
def ahead(fitted):
    return forecast(fitted, 256, budgets=[1.0, 1e6])


def test_chances_rise_with_the_budget_to_all_that_do_not_diverge(ahead):
    budgets = [each.epochs for each in ahead.chances]
    chances = [each.probability for each in ahead.chances]
    assert budgets == sorted(budgets) and chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[-1] == pytest.approx(1 - ahead.divergence)
    at_median = next(each for each in ahead.chances if each.epochs == ahead.epochs_to_target.median)
    assert at_median.probability == pytest.approx(0.5 * (1 - ahead.divergence), abs=0.05)


def test_a_budget_must_be_positive(fitted):
    with pytest.raises(
        EvidenceError, match="budget of epochs must be a finite number above 0, but got 0"
    ):
        forecast(fitted, 256, budgets=[0.0])


@pytest.mark.parametrize("batch", [0, -1, float("nan"), 2**31, 2**64, 10**26, 10**400])
def test_a_batch_size_that_no_study_may_have_is_refused(fitted, batch):
    for made in (forecast, lambda posterior, each: epochs_band(posterior, [each])):
        with pytest.raises(
            EvidenceError, match="global_batch_size must be a number from 1 to 2147483647"
        ):
            made(fitted, batch)


def test_a_wrong_rate_costs_about_what_it_does_in_truth(ahead):
    half, double = ahead.sensitivity
    miss = np.log(2)
    assert (half.factor, double.factor) == (0.5, 2.0)
    assert half.epochs_factor.low < np.exp(np.hypot(0.7, miss) - 0.7) < half.epochs_factor.high
    assert double.epochs_factor.high > np.exp(miss**2 / 1.2)
    assert half.divergence <= ahead.divergence <= double.divergence


def test_a_table_tells_no_sensitivity_and_no_risk():
    rows = [
        AggregateRow(batch, epochs, 5, 0.2, {"learning_rate": 0.1})
        for batch, epochs in ((16, 8.0), (32, 8.2), (64, 9.0))
    ]
    found = forecast(
        fit(Evidence(aggregates=rows, tuned=[RATE]), rng=np.random.default_rng(0)), 128
    )
    assert found.sensitivity == () and found.divergence is None
    assert found.to_dict()["sensitivity"] == {}
    assert found.chances[-1].probability > 0.99


def _past(factor, count=1):
    return [PastForecast(10.0, 8.0, 12.5, 10.0 * factor, 8.0 <= 10.0 * factor <= 12.5)] * count


def test_the_error_of_a_past_forecast_is_in_its_own_standard_deviations():
    assert PastForecast(10.0, 8.0, 12.5, 12.5, True).error == pytest.approx(1.645, abs=1e-3)
    assert PastForecast(10.0, 8.0, 12.5, 8.0, True).error == pytest.approx(1.645, abs=1e-3)
    assert PastForecast(10.0, 8.0, 12.5, 1e9, False).error == 4.0
    assert PastForecast(10.0, 8.0, 12.5, None, None).error is None


def test_calibration_widens_after_misses_and_narrows_after_hits():
    assert calibrate_forecasts([]).scale == 1.0
    assert calibrate_forecasts([PastForecast(10.0, 8.0, 12.5, None, None)]).count == 0
    assert (
        calibrate_forecasts(_past(2.0)).scale
        > calibrate_forecasts([PastForecast(10.0, 8.0, 12.5, None, False)]).scale
        > 1.0
    )
    assert (
        NARROWEST
        <= calibrate_forecasts(_past(1.0, 50)).scale
        < calibrate_forecasts(_past(1.0, 2)).scale
        < 1.0
    )
    with_right_spread = [
        PastForecast(0.0 + 10, 8.0, 12.5, 10 * float(np.exp(0.1356 * z)), True) for z in (-1, 1)
    ] * 20
    assert calibrate_forecasts(with_right_spread).scale == pytest.approx(1.0, abs=0.01)


def test_past_outcomes_move_interval_chance_and_trust(fitted, ahead):
    wide = forecast(fitted, 256, past=_past(3.0, 4))
    narrow = forecast(fitted, 256, past=_past(1.0, 6))
    widths = [
        np.log(each.epochs_to_target.high / each.epochs_to_target.low)
        for each in (narrow, ahead, wide)
    ]
    assert widths[0] < widths[1] < widths[2]
    assert widths[2] / widths[1] == pytest.approx(wide.calibration.scale, rel=1e-6)
    assert wide.epochs_to_target.median == pytest.approx(ahead.epochs_to_target.median, rel=1e-9)
    assert wide.trust == "low" and "only 0 of 4 earlier forecasts held" in wide.reason
    assert narrow.calibration.to_dict() == {
        "forecasts": 6,
        "held": 6,
        "scale": narrow.calibration.scale,
    }


def test_the_rates_response_is_least_at_the_best_rate_and_diverges_beyond_the_limit(fitted):
    law = fitted.law("learning_rate")
    response = law.response(fitted.values, np.log([16.0, 128.0]))
    assert (response.cost(response.best) == 0).all()
    misses = np.linspace(-3, 1, 41)
    cost = np.array([response.cost(response.best + miss) for miss in misses])
    assert (np.diff(cost[misses <= 0], axis=0) <= 1e-12).all() and (
        np.diff(cost[misses >= -1e-9], axis=0) >= 0
    ).all()
    assert (cost[0] <= 3.0).all() and (response.limit > response.best).all()
    np.testing.assert_allclose(response.risk(response.limit), 0.5)
    assert (response.risk(response.limit - 50) < 1.01 * LOST_BY_CHANCE).all()


def test_the_best_rate_ends_at_its_ceiling(fitted):
    law = fitted.law("learning_rate")
    best = law.best(fitted.values, np.log([1.0, 100.0, 1e30]))
    assert (np.diff(best, axis=1) > 0).all()
    np.testing.assert_allclose(best[:, 2], law.ceiling(fitted.values)[:, 0], atol=1e-6)


def _with_momentum(rng, lag_counts):
    # lr / (1 - m) has one best value at each batch, and momentum costs nothing
    def trial(batch, momentum, effective):
        miss = np.log(effective / (0.02 * batch))
        epochs = 8 * np.exp(
            np.hypot(0.6, min(miss, 0)) - 0.6 + max(miss, 0) ** 2 + 0.02 * rng.standard_normal()
        )
        settings = {
            "learning_rate": effective * (1 - momentum),
            "momentum": momentum,
            "optimizer": "sgd",
        }
        return TrainingObservation(
            batch, "reached" if epochs < 40 else "censored", min(epochs, 40.0), settings
        )

    trials = [
        trial(batch, float(momentum), float(np.exp(rng.normal(np.log(0.02 * batch), 0.7))))
        for batch in (4, 8, 16, 32)
        for momentum in lag_counts
    ]
    return Evidence(
        observations=trials, tuned=[RATE, ScaledSetting("momentum", "linear", 0.0, 0.99)]
    )


def test_with_tuned_momentum_the_rate_over_one_minus_momentum_is_what_counts():
    evidence = _with_momentum(np.random.default_rng(0), 1 - np.geomspace(1, 0.02, 12))
    posterior = fit(evidence, rng=np.random.default_rng(0))
    law = posterior.law("learning_rate")
    for momentum in (0.0, 0.8, 0.95):
        best = law.best(posterior.values, np.log([16.0]), np.array([momentum]))[:, 0]
        assert np.exp(np.median(best)) / (1 - momentum) == pytest.approx(0.32, rel=0.35)
    found = forecast(posterior, 64).settings
    assert 0 <= found["momentum"].low <= found["momentum"].median <= found["momentum"].high < 1
    assert found["learning_rate"].median / (1 - found["momentum"].median) == pytest.approx(
        1.28, rel=0.5
    )


def test_noise_scales_are_medians_over_the_points_of_a_trial():
    names = (
        "trial_id",
        "step",
        "samples",
        "epochs",
        "seconds",
        "train_loss",
        "loss",
        "metric",
        "learning_rate",
        "global_batch_size",
        "gradient_noise_scale",
    )
    columns = {name: np.ones(6) for name in names} | {
        "trial_id": np.array([1, 1, 1, 2, 3, 3]),
        "gradient_noise_scale": np.array([10, 30, 20, np.nan, -5.0, 7.0]),
    }
    assert noise_scales(Convergence(**columns)) == {1: 20.0, 3: 7.0}


def test_a_measured_noise_scale_moves_the_turn_of_the_rate():
    def noise(measured):
        trials = [
            TrainingObservation(
                batch, "reached", 8.0, {"learning_rate": 0.01 * batch}, seed, 0.0, measured
            )
            for batch in (16, 32)
            for seed in range(3)
        ]
        posterior = fit(Evidence(observations=trials, tuned=[RATE]), rng=np.random.default_rng(0))
        return forecast(posterior, 64).laws["learning_rate"]["B_noise"].median

    assert noise(30.0) < noise(None) < noise(30_000.0)


def test_the_critical_batch_is_largest_at_the_best_momentum_and_falls_like_the_lag_on_both_sides():
    assert laws.log_critical_by_momentum(0.8, 0.8) == pytest.approx(0.0)
    far_above, far_below = laws.log_critical_by_momentum(np.array([1 - 2e-6, 1 - 1.0]), 1 - 1e-3)
    assert far_above == pytest.approx(np.log(2 * 2e-3), abs=1e-4)
    assert far_below == pytest.approx(np.log(2 * 1e-3), abs=1e-4)


def test_stored_trials_tell_the_samples_of_an_epoch():
    def trial(samples, epochs):
        return Trial(
            id=1,
            study_id=1,
            number=0,
            state=TrialState.REACHED,
            global_batch_size=16,
            seed=0,
            settings={},
            purpose="sweep",
            epochs_to_target=epochs,
            epochs=epochs,
            steps=None,
            samples=samples,
            seconds=None,
            best_metric=None,
            final_metric=None,
            reason="",
            resolution_epochs=None,
            started_at=None,
            finished_at=None,
        )

    assert (
        samples_per_epoch(
            [trial(2_000, 2.0), trial(3_000, 3.0), trial(5_000, 1.0), trial(None, 4.0)]
        )
        == 1_000.0
    )
    assert samples_per_epoch([trial(None, 2.0), trial(100, None)]) is None
