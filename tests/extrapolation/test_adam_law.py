"""The law of Adam: its limits, the candidates that it contains, and a known answer."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.extrapolation.learn import START_OF_ADAM, learn_adam
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.model import make_posterior_models
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.adam_law import AdamRate, log_best_batch, log_excess
from hpo.extrapolation.laws.laws import log_growth, log_small_batch_excess
from hpo.extrapolation.laws.priors import AdamPriors, LawPriors, NormalPrior

BATCHES = np.log([4.0, 32.0, 256.0, 2048.0, 16384.0])
CRITICAL, LOW = 1500.0, 60.0


def values(**changes):
    told = {
        "log_critical": np.log(CRITICAL),
        "log_sharpness": 0.2,
        "log_exponent": 0.0,
        "adam.log_low_over_critical": np.log(LOW / CRITICAL),
        "adam.log_low_power": 0.0,
        "learning_rate.anchor": np.log(1e-3),
        "learning_rate.exponent": 0.5,
        "learning_rate.log_noise_over_best_batch": 0.0,
        "learning_rate.log_sharpness": 0.0,
        "learning_rate.fall": 0.0,
        "learning_rate.log_below": -1.0,
        "learning_rate.log_above": 0.0,
        "learning_rate.log_round": -1.0,
        "learning_rate.log_margin": 0.0,
        "learning_rate.follow": -1.5,
        "learning_rate.log_divergence_width": -2.0,
    }
    return {name: np.array([value]) for name, value in (told | changes).items()}


@pytest.fixture
def law():
    return AdamRate(
        ScaledSetting("learning_rate"),
        np.log(1e-3),
        1.0,
        (np.log(1e-4), np.log(1e-2)),
        np.log(256.0),
        np.log(16.0),
    )


def test_the_excess_is_gone_at_large_batches_and_a_power_at_small_ones():
    excess = log_small_batch_excess(BATCHES, np.log(LOW), 0.8)
    assert np.all(np.diff(excess) < 0) and excess[-1] < 0.01
    steps = np.diff(log_small_batch_excess(np.log([0.01, 0.02]), np.log(LOW), 0.8))
    assert steps == pytest.approx(-0.8 * np.log(2), rel=1e-3)
    assert (
        log_excess({"log_critical": np.zeros(1)}, BATCHES) == 0.0
    )  # another optimizer's model knows of none


@pytest.mark.parametrize("sharpness", [0.7, 1.0, 2.0])
def test_the_batch_with_the_fewest_epochs_is_where_a_search_finds_it(sharpness):
    found = values(log_sharpness=np.log(sharpness), **{"adam.log_low_over_critical": np.log(1e-3)})
    grid = np.linspace(np.log(1.0), np.log(1e5), 4000)
    epochs = log_growth(grid, np.log(CRITICAL), sharpness) + log_excess(found, grid)[0]
    assert log_best_batch(found)[0] == pytest.approx(grid[np.argmin(epochs)], abs=0.1)


@pytest.mark.parametrize(
    ("fall", "formula"),
    [
        (0.0, lambda batch, top, noise: top / (1 + noise / batch) ** 0.5),
        (-0.5, lambda batch, top, noise: top * np.sqrt(batch / noise)),
    ],
)
def test_flat_and_the_square_root_are_points_of_the_prior(law, fall, formula):
    found = values(**{"learning_rate.fall": fall})
    noise, batches = np.exp(law.log_noise(found)[0]), np.exp(BATCHES)
    top = float(np.exp(law.ceiling(found)[0, 0]))
    assert np.exp(law.best(found, BATCHES)[0]) == pytest.approx(formula(batches, top, noise))


def test_the_surge_is_a_point_of_the_prior(law):
    """At a sharpness of 2: sqrt(B / N + N / B) is the sum of roots of Li et al. 2024 (arXiv:2405.14578) but for its
    corner."""
    found = values(**{"learning_rate.fall": 0.5, "learning_rate.log_sharpness": np.log(2.0)})
    noise, far = np.exp(law.log_noise(found)[0]), np.log([1e-3, 1e3])
    top = float(np.exp(law.ceiling(found)[0, 0]))
    best = np.exp(law.best(found, np.log(noise) + far)[0])
    assert best == pytest.approx(top / (np.exp(far / 2) + np.exp(-far / 2)), rel=0.01)


def test_the_rate_is_the_anchor_at_the_largest_rung(law):
    assert law.best(values(), np.array([law.log_anchor]))[0, 0] == pytest.approx(np.log(1e-3))


def test_a_miss_costs_nothing_at_the_best_rate_and_a_power_far_from_it(law):
    response = law.response(values(), BATCHES)
    assert response.cost(response.best) == pytest.approx(np.zeros((1, len(BATCHES))))
    away = np.array([0.3, 1.0, 3.0, 9.0])
    below, above = (
        np.concatenate(
            [response.cost(response.best + side * step)[:, :1] for step in away], axis=1
        )[0]
        for side in (-1, 1)
    )
    assert np.all(np.diff(below) > 0) and np.all(np.diff(above) > 0)
    assert (below[-1] - below[-2]) / 6 == pytest.approx(np.exp(-1.0), rel=0.01)
    assert (above[-1] - above[-2]) / 6 == pytest.approx(1.0, rel=0.01)
    risk = response.risk(response.best + 5.0)
    assert np.all(risk > 0.9) and np.all(response.risk(response.best) < 0.1)


def sweep(fall=0.0, seed=0, batches=(32, 64, 128, 256), optimizer="adamw"):
    """Trials by the law with 3 % scatter: N at the batch of the fewest epochs, a = 0.8."""
    rng, law = (
        np.random.default_rng(seed),
        values(
            **{
                "learning_rate.exponent": 0.8,
                "learning_rate.fall": fall,
                "learning_rate.log_sharpness": 0.4,
            }
        ),
    )
    made = AdamRate(
        ScaledSetting("learning_rate"), 0.0, 1.0, (-1.0, 1.0), np.log(256.0), np.log(16.0)
    )
    found = []
    for batch in batches:
        for rate in np.geomspace(2e-4, 8e-3, 9):
            at = np.array([np.log(float(batch))])
            cost = made.response(law, at).cost(np.array([np.log(rate)]))[0, 0]
            epochs = np.exp(
                log_growth(at, np.log(CRITICAL), np.exp(0.2))[0]
                + log_excess(law, at)[0, 0]
                + cost
                + 0.03 * rng.standard_normal()
            )
            found.append(
                TrainingObservation(
                    batch,
                    "reached",
                    float(10 * epochs),
                    {"optimizer": optimizer, "learning_rate": float(rate)},
                )
            )
    return Evidence(observations=found, tuned=[ScaledSetting("learning_rate")]), made, law


@pytest.mark.fit
def test_a_known_answer():
    """Rungs at which small batches cost more and the rate still grows, beyond which it does not."""
    evidence, made, law = sweep()
    posterior = fit(evidence, rng=np.random.default_rng(0))
    for batch in (512, 1024, 2048):
        at = np.array([np.log(float(batch))])
        found, best = forecast(posterior, batch), float(np.exp(made.best(law, at)[0, 0]))
        rate = found.settings["learning_rate"]
        assert rate.low < best < rate.high
        assert 1 / 1.5 < rate.median / best < 1.5
        epochs = 10 * float(
            np.exp(log_growth(at, np.log(CRITICAL), np.exp(0.2))[0] + log_excess(law, at)[0, 0])
        )
        assert found.epochs_to_target.low < epochs < found.epochs_to_target.high
        assert found.epochs_to_target.median == pytest.approx(epochs, rel=0.3)


@pytest.mark.fit
def test_only_adam_and_adamw_with_a_tuned_rate_get_the_law():
    names = {
        optimizer: {
            one.name
            for model in make_posterior_models(
                sweep(optimizer=optimizer, batches=(32, 64))[0], LawPriors()
            )
            for one in model.layout.parameters
        }
        for optimizer in ("adam", "adamw", "lamb", "sgd")
    }
    assert {optimizer for optimizer, found in names.items() if "learning_rate.fall" in found} == {
        "adam",
        "adamw",
    }
    untold = replace(sweep(batches=(32,))[0], tuned=())
    assert "adam.log_low_power" not in {
        one.name
        for model in make_posterior_models(untold, LawPriors())
        for one in model.layout.parameters
    }


@pytest.mark.fit
@pytest.mark.slow  # the answers known for the shipped belief are in the run
def test_learning_moves_the_belief_to_what_sweeps_say_and_narrows_it():
    ladder = (16, 64, 256, 1024, 4096)
    sweeps = [sweep(seed=seed, batches=ladder)[0] for seed in range(2)]
    found = learn_adam(sweeps, rng=np.random.default_rng(0), rounds=1)
    assert isinstance(found, AdamPriors)
    assert abs(found.log_below.mean + 1.0) < abs(START_OF_ADAM.log_below.mean + 1.0)
    assert found.log_below.sd < START_OF_ADAM.log_below.sd


def test_priors_hold_a_spread_in_every_belief():
    assert all(one.sd > 0 for one in vars(AdamPriors()).values() if isinstance(one, NormalPrior))
