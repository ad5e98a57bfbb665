"""Forecasts on simulated ladders against the known truth."""

import dataclasses
import json

import numpy as np
import pytest
from ladders import TUNED, Truth, sweep, table
from scipy import stats

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence, TrainingObservation
from hpo.extrapolation.forecast import epochs_band, forecast, setting_band
from hpo.extrapolation.inference.model import make_posterior_models
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.inference.residual import LENGTH, SHARED, residual_correlation
from hpo.extrapolation.laws.priors import LawPriors
from hpo.extrapolation.recommend import expected_cost, response_at

pytestmark = pytest.mark.fit

TRUTH = Truth()


@pytest.fixture(scope="module")
def fitted():
    return fit(sweep(TRUTH, np.random.default_rng(0), settings=20), rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def ahead(fitted):
    return forecast(fitted, 512)


def test_epochs_and_learning_rate_come_out_of_a_sweep(ahead):
    assert ahead.epochs_to_target.low < TRUTH.epochs(512) < ahead.epochs_to_target.high
    assert ahead.epochs_to_target.median == pytest.approx(TRUTH.epochs(512), rel=0.25)
    assert ahead.settings["learning_rate"].median == pytest.approx(TRUTH.best_rate(512), rel=0.35)
    assert (
        ahead.settings["learning_rate"].low
        < TRUTH.best_rate(512)
        < ahead.settings["learning_rate"].high
    )


def test_the_rungs_themselves_are_known_well(fitted):
    for batch in (16, 64, 128):
        inside = forecast(fitted, batch)
        assert inside.epochs_to_target.median == pytest.approx(TRUTH.epochs(batch), rel=0.15)
        assert inside.settings["learning_rate"].median == pytest.approx(
            TRUTH.best_rate(batch), rel=0.3
        )


def test_intervals_widen_with_the_distance(fitted):
    band = epochs_band(fitted, [128, 512, 2048, 8192])
    assert (np.diff(band.high / band.low) > 0).all()
    assert (np.diff(band.median) > 0).all()


def test_bands_are_the_forecasts(fitted, ahead):
    assert epochs_band(fitted, [512]).median[0] == ahead.epochs_to_target.median
    band = setting_band(fitted, "learning_rate", [512])
    rate = ahead.settings["learning_rate"]
    assert (band.low[0], band.median[0], band.high[0]) == (rate.low, rate.median, rate.high)


def test_the_recommended_rate_costs_next_to_nothing_over_the_least_expected(fitted, ahead):
    response = response_at(fitted, fitted.law("learning_rate"), float(np.log(512)), None)

    def expected(rate):
        grid = np.log([rate])
        return float(expected_cost(response.cost(grid), response.risk(grid))[0])

    chosen = ahead.settings["learning_rate"].median
    least = min(expected(chosen * factor) for factor in np.linspace(0.5, 2.0, 301))
    assert expected(chosen) <= least + 0.02
    assert all(expected(chosen * factor) > expected(chosen) for factor in (0.5, 2.0))


def test_a_near_stability_bound_lowers_the_recommended_rate():
    # the higher the rate the faster, up to 0.2: there training diverges
    def trial(batch, rate, seed):
        epochs, state = 8 * np.sqrt(0.16 / rate), "reached" if rate < 0.2 else "diverged"
        return TrainingObservation(batch, state, epochs, {"learning_rate": rate}, seed)

    trials = [
        trial(batch, rate, seed)
        for batch in (16, 32, 64)
        for rate in (0.04, 0.08, 0.16, 0.2, 0.3, 0.5)
        for seed in (0, 1)
    ]
    posterior = fit(Evidence(observations=trials, tuned=TUNED[:1]), rng=np.random.default_rng(0))
    response = response_at(posterior, posterior.law("learning_rate"), float(np.log(64)), None)
    high, low = response.risk(np.log([0.4, 0.1])).mean(axis=0)
    assert high > 0.6 and low < 0.1
    found = forecast(posterior, 64)
    assert found.settings["learning_rate"].median < 0.2
    bound = found.laws["learning_rate"]["stable_below"]
    assert bound.low < 0.2 and bound.high < 0.4


@pytest.mark.slow
def test_divergence_at_small_rungs_tells_of_the_ceiling_at_large_ones():
    # at every rung the best rate is linear in the batch, and 1.0 diverges: so it does at 1024, where linear says 1.6
    def trial(batch, rate, seed):
        best = 0.1 * batch / 64
        cost = np.hypot(0.6, min(np.log(rate / best), 0)) - 0.6 + max(np.log(rate / best), 0) ** 2
        epochs = 8 * np.exp(cost)
        state = "diverged" if rate >= 1.0 else "reached" if epochs < 40 else "censored"
        return TrainingObservation(
            batch, state, min(epochs, 40.0), {"learning_rate": rate, "optimizer": "sgd"}, seed
        )

    rates = np.geomspace(0.01, 3, 14)
    trials = [trial(batch, rate, 0) for batch in (8, 16, 32, 64) for rate in rates]
    found = forecast(
        fit(Evidence(observations=trials, tuned=TUNED[:1]), rng=np.random.default_rng(0)), 1024
    )
    assert 0.3 < found.settings["learning_rate"].median < 1.0


def test_what_a_rung_has_over_is_carried_to_its_neighbours():
    posterior = fit(
        table(TRUTH, np.random.default_rng(2), (16, 64, 256)), rng=np.random.default_rng(0)
    )
    above = dataclasses.replace(
        posterior,
        residual_places=np.log([[256.0]]),
        residuals=np.full((len(posterior.residuals), 1), 0.1),
    )
    for distance in (0.0, 1.0, 3.0):
        at = np.log(256.0) + distance
        carried = (
            above.log_epochs(at)[0] - posterior.model.mean(posterior.values, np.array([at]))[:, 0]
        )
        np.testing.assert_allclose(carried, 0.1 * SHARED * np.exp(-distance / LENGTH))


def test_drawn_residuals_have_the_conditional_mean():
    evidence = table(TRUTH, np.random.default_rng(2), (16, 64, 256))
    posterior = fit(evidence, rng=np.random.default_rng(0))
    rows = posterior.model.rows
    values = {
        name: np.repeat(value[:1], 20_000, axis=0) for name, value in posterior.values.items()
    }
    mean = posterior.model.mean(values, rows.log_batch)
    drawn = rows.draw_residuals(values, mean, np.random.default_rng(1))
    prior = np.exp(2 * values["log_recipe_scatter"][0]) * residual_correlation(rows.log_batch)
    gap = rows.log_epochs - mean[0]
    inverse = np.linalg.inv(prior + np.diag(rows.error**2))
    np.testing.assert_allclose(drawn.mean(axis=0), prior @ inverse @ gap, atol=1e-3)
    np.testing.assert_allclose(np.cov(drawn.T), prior - prior @ inverse @ prior, atol=3e-5)


def test_rows_are_jointly_normal():
    evidence = table(TRUTH, np.random.default_rng(2), (16, 64, 64, 256))
    model = make_posterior_models(evidence, LawPriors())[0]
    values = model.layout.values(
        np.random.default_rng(0).standard_normal((3, model.layout.dimension))
    )
    rows, mean = model.rows, model.mean_of_rows(values)
    errors = np.diag(rows.error**2)
    expected = [
        stats.multivariate_normal.logpdf(
            rows.log_epochs,
            centre,
            np.exp(2 * scatter) * residual_correlation(rows.log_batch) + errors,
        )
        for centre, scatter in zip(mean, values["log_recipe_scatter"], strict=True)
    ]
    found = dataclasses.replace(rows, settings=[]).log_likelihood(values, mean, [])
    np.testing.assert_allclose(found - len(rows.error) / 2 * np.log(2 * np.pi), expected)


@pytest.mark.slow
def test_the_same_generator_gives_the_same_forecast():
    evidence = sweep(TRUTH, np.random.default_rng(3), settings=5)
    first, second = (
        forecast(fit(evidence, rng=np.random.default_rng(7)), 512).to_dict() for _ in range(2)
    )
    assert first == second


def test_the_json_is_the_contract(ahead):
    plain = json.loads(json.dumps(ahead.to_dict()))
    assert list(plain)[:5] == [
        "global_batch_size",
        "epochs_to_target",
        "settings",
        "trust",
        "reason",
    ]
    assert set(plain["settings"]) == {"learning_rate", "warmup_epochs"}
    assert set(plain["epochs_to_target"]) == {"median", "low", "high"}
    assert plain["trust"] in {"high", "medium", "low"}
    assert {"E_min", "B_crit"} <= set(ahead.laws_dict()["epochs_to_target"])


@pytest.mark.slow
def test_censored_trials_count_as_longer_not_as_missing():
    rng = np.random.default_rng(5)
    generous, tight = Truth(budget_epochs=1000.0), Truth(budget_epochs=5.5)
    full = fit(sweep(generous, rng, (16, 32, 64, 128), 10), rng=np.random.default_rng(0))
    # at batch 128 nothing reaches the target in 5.5 epochs: 6.6 are needed
    cut = sweep(tight, np.random.default_rng(5), (16, 32, 64, 128), 10)
    assert not any(
        item.state == "reached" for item in cut.observations if item.global_batch_size == 128
    )
    alive = [item for item in cut.observations if item.state == "reached"]
    seeing = fit(cut, rng=np.random.default_rng(0))
    blind = fit(Evidence(observations=alive, tuned=TUNED), rng=np.random.default_rng(0))
    with_censored, without = (
        forecast(posterior, 128).epochs_to_target for posterior in (seeing, blind)
    )
    assert without.median < with_censored.median and without.low < 0.95 * with_censored.low
    far = forecast(seeing, 512).epochs_to_target
    assert far.low < forecast(full, 512).epochs_to_target.median < far.high


def test_a_coarse_evaluation_means_earlier_and_wider():
    def at(resolution):
        trials = [
            TrainingObservation(batch, "reached", epochs, {}, seed, resolution)
            for seed in range(3)
            for batch, epochs in ((16, 8.0), (32, 8.0), (64, 12.0), (128, 12.0))
        ]
        return forecast(
            fit(Evidence(observations=trials), rng=np.random.default_rng(0)), 128
        ).epochs_to_target

    sharp, coarse = at(0.0), at(4.0)
    assert 8.0 < coarse.median < min(sharp.median, 12.0)
    assert sharp.high / sharp.low < coarse.high / coarse.low < 2


def test_the_measured_noise_scale_moves_the_critical_batch():
    def critical(noise_scale):
        trials = [
            TrainingObservation(16, "reached", 8.0, {}, seed, gradient_noise_scale=noise_scale)
            for seed in range(3)
        ]
        posterior = fit(Evidence(observations=trials), rng=np.random.default_rng(0))
        return forecast(posterior, 64).laws["epochs_to_target"]["B_crit"]

    assert critical(30.0).median < critical(None).median < critical(3000.0).median


@pytest.mark.slow
def test_table_intervals_hold_about_as_often_as_they_say():
    inside, errors = [], []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        truth = Truth(critical_batch=float(np.exp(rng.normal(2.7, 1.0))) * 16)
        at = 512
        observed = truth.epochs(at) * np.exp(0.04 * rng.standard_normal())
        found = forecast(fit(table(truth, rng, (16, 32, 64, 128)), rng=rng), at).epochs_to_target
        inside.append(found.low < observed < found.high)
        errors.append(abs(found.median / observed - 1))
    assert np.mean(inside) >= 0.8
    assert np.median(errors) < 0.12


@pytest.mark.slow
def test_sweep_intervals_hold_about_as_often_as_they_say():
    truths = [TRUTH.epochs(256), TRUTH.best_rate(256)]
    inside = []
    for seed in range(10):
        found = forecast(
            fit(
                sweep(TRUTH, np.random.default_rng(100 + seed), settings=6),
                rng=np.random.default_rng(seed),
            ),
            256,
        )
        ends = (found.epochs_to_target, found.settings["learning_rate"])
        inside += [end.low < true < end.high for end, true in zip(ends, truths, strict=True)]
    assert np.mean(inside) >= 0.75


def test_an_unknown_setting_and_a_bad_batch_are_told(fitted):
    with pytest.raises(EvidenceError, match="tuned settings are: learning_rate, warmup_epochs"):
        setting_band(fitted, "momentum", [512])
    with pytest.raises(EvidenceError, match="a number from 1 to 2147483647"):
        forecast(fitted, 0)
