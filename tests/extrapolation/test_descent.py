"""The law of descent: its limits, its optimum, and the noisy quadratics that it describes."""

import dataclasses
import functools

import numpy as np
import pytest
from ladders import Truth, sweep
from scipy.optimize import least_squares

from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.descent import DescentLaw, log_best_share
from hpo.extrapolation.laws.descent_laws import DescentRate
from hpo.extrapolation.laws.make_laws import make_descent_law, make_laws
from hpo.extrapolation.recommend import ALIKE, serve_alike
from trainers.workloads.noisy_quadratic.dynamics import stability_limit
from trainers.workloads.noisy_quadratic.optimum import epochs_to_target, quadratic_optimum
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

pytestmark = pytest.mark.fit

LADDER = (16, 32, 64, 128, 256)
CRITICAL, DECAY, WALL, SAMPLES = 500.0, 1.4, 2.0, 10_000.0
BATCHES = np.log([1e-3, 1.0, 50.0, 500.0, 4e3, 1e6, 1e7])


def values(decay=DECAY, wall=WALL, lags=3.0, anchor=0.1):
    return {
        "log_critical": np.log([CRITICAL]),
        "log_min_epochs": np.log([5.0]),
        "log_exponent": np.zeros(1),
        "descent.log_decay": np.log([decay]),
        "descent.log_wall": np.log([wall]),
        "descent.log_fewest_lags": np.log([lags]),
        "descent.log_corner": np.log([2.0]),
        "learning_rate.anchor": np.log([anchor]),
    }


def without_floor(momentum=0.0):
    return DescentLaw(momentum, float(np.log(256)), None, tuned=False)


def lags(momentum):
    return np.array([-np.log1p(-momentum)])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.5, 1.4, 3.0])
def test_epochs_are_flat_at_small_batches_and_in_proportion_at_large_ones(decay, momentum):
    law = without_floor(momentum)
    growth = np.exp(law.log_growth(values(decay), BATCHES, lags(momentum))[0])
    assert growth[0] == pytest.approx(1.0, rel=1e-3)
    assert growth[-2:] == pytest.approx(np.exp(BATCHES[-2:]) / CRITICAL, rel=0.06)
    assert (np.diff(growth) > 0).all()


def test_the_best_rate_obeys_the_linear_rule_at_small_batches_and_the_bound_at_large_ones():
    law, batches = without_floor(), np.log([0.01, 0.02, 1e9])
    shares = np.exp(law.log_best(values(), batches, law.lags)[0])
    assert shares[1] / shares[0] == pytest.approx(2.0, rel=1e-3)
    assert shares[2] == pytest.approx(1.0, abs=0.01)
    at_half = np.exp(
        law.log_best(values(), batches[:1], lags(0.5))[0] + law.log_ceiling(values(), lags(0.5))[0]
    )
    at_none = np.exp(
        law.log_best(values(), batches[:1], lags(0.0))[0] + law.log_ceiling(values(), lags(0.0))[0]
    )
    assert at_half / at_none == pytest.approx(0.5, rel=1e-3)  # lr / (1 - m) counts


def test_momentum_raises_the_critical_batch_by_its_speed_up():
    law, huge = without_floor(), np.log([1e8])
    plain, heavy = (law.log_growth(values(), huge, lags(momentum))[0, 0] for momentum in (0.0, 0.9))
    assert np.exp(plain - heavy) == pytest.approx(1.9 / 0.1, rel=0.01)


def test_no_training_is_shorter_than_the_floor_of_its_momentum():
    law = DescentLaw(0.9, float(np.log(256)), float(np.log(SAMPLES)), tuned=False)
    updates = (
        5.0
        * np.exp(law.log_growth(values(lags=3.0), BATCHES, lags(0.9))[0])
        * SAMPLES
        / np.exp(BATCHES)
    )
    assert (updates >= 3.0 / 0.1).all()
    assert updates[-1] == pytest.approx(
        np.hypot(30.0, 5.0 * SAMPLES / CRITICAL), rel=0.01
    )  # both terms, q = 2


def test_the_best_momentum_balances_the_ceiling_and_the_floor():
    law = DescentLaw(0.9, float(np.log(256)), float(np.log(SAMPLES)), tuned=True)
    found = law.best_lags(values(), BATCHES)[0]
    grid = np.linspace(0.0, 5.3, 2001)
    for batch, best in zip(BATCHES[3:], found[3:], strict=True):
        cost = law.log_growth(values(), np.full(len(grid), batch), grid)[0]
        at_best = law.log_growth(values(), np.array([batch]), np.array([best]))[0, 0]
        assert at_best == pytest.approx(cost.min(), abs=2e-3)


@pytest.mark.parametrize("decay", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("wall", [0.5, 1.0, 3.0])
def test_the_tabled_optimum_is_that_of_the_formula(decay, wall):
    log_noise = np.linspace(-6, 6, 13)
    grid = np.linspace(-14, -1e-6, 400_001)
    found = log_best_share(log_noise, np.full(13, np.log(decay)), np.full(13, np.log(wall)))
    for noise, best in zip(log_noise, found, strict=True):
        share = np.exp(noise + grid) / -np.expm1(wall * grid)
        with np.errstate(invalid="ignore", divide="ignore"):
            epochs = np.where(
                share < 1, -grid - np.log1p(-np.minimum(share, 1 - 1e-12)) / decay, np.inf
            )
        assert np.interp(best, grid, epochs) == pytest.approx(epochs.min(), abs=2e-3)


@pytest.mark.parametrize("beyond", [300.0, 1e3, 1e4, 1e6])
def test_no_rate_is_better_than_the_best_however_far_the_batch(beyond):
    law, batch = without_floor(), np.log([CRITICAL * beyond])
    share = np.linspace(-3, 3, 601)
    cost = law.log_epochs(values(), np.full(601, batch[0]), law.lags, share[None, :])[0]
    assert (cost >= law.log_growth(values(), batch, law.lags)[0, 0] - 2e-3).all()


def test_the_noise_of_one_mode_is_that_of_the_wall_at_one():
    """The stationary loss of one mode, r c / (2 B (2 - r h)), by iterating its second moment."""
    curvature, noise, batch = 1.0, 3.0, 8.0

    def stationary(rate):
        square = 0.0
        for _ in range(20_000):
            square = (1 - rate * curvature) ** 2 * square + rate**2 * noise / batch
        return 0.5 * curvature * square

    limit, small = 2 / curvature, 1e-3
    for rate in (0.4, 1.0, 1.8):
        by_wall = (rate / (1 - rate / limit)) / (small / (1 - small / limit))
        assert stationary(rate) / stationary(small) == pytest.approx(by_wall, rel=1e-3)


def exact_trials(problem, target, momentum):
    """Rate, batch and epochs of a grid of rates at every rung, without noise between seeds."""
    limit, found = float(stability_limit(problem.curvature, momentum=momentum)), []
    for batch in LADDER:
        best = quadratic_optimum(problem, target, batch, momentum=momentum)
        for rate in best.learning_rate * np.exp(np.linspace(-2.0, 1.0, 13)):
            epochs = float(
                epochs_to_target(
                    problem, target, learning_rate=rate, global_batch_size=batch, momentum=momentum
                )
            )
            if rate < 0.98 * limit and epochs < 4 * best.epochs:
                found.append((rate, batch, epochs))
    return np.array(found).T


@pytest.mark.parametrize("exponent", [pytest.param(1.0, marks=pytest.mark.slow), 1.4])
def test_a_noisy_quadratic_follows_the_law_up_to_16_times_the_ladder(exponent):
    """Fitted to exact epochs at 16 to 256, by least squares and with the bound of stability known."""
    problem, target = (
        QuadraticProblem(
            modes=150, curvature_exponent=exponent, noise_scale=10.0, train_samples=4_000
        ),
        0.05,
    )
    rate, batch, epochs = exact_trials(problem, target, 0.0)
    limit = float(stability_limit(problem.curvature, momentum=0.0))
    law = without_floor()

    def at(unknown, rate, batch):
        known = values() | {
            "log_critical": unknown[:1],
            "descent.log_decay": unknown[1:2],
            "descent.log_wall": unknown[2:3],
        }
        return (
            unknown[3]
            + law.log_epochs(known, np.log(batch), law.lags, np.log(rate / limit)[None, :])[0]
        )

    fitted = least_squares(
        lambda unknown: at(unknown, rate, batch) - np.log(epochs),
        [np.log(300.0), 0.3, 0.6, np.log(epochs.min())],
    )
    assert np.sqrt(np.mean(fitted.fun**2)) < 0.04
    rates = limit * np.linspace(0.02, 0.99, 400)
    chosen = rates[np.argmin(at(fitted.x, rates, np.full(400, 4096.0)))]
    needed = float(
        epochs_to_target(
            problem, target, learning_rate=chosen, global_batch_size=4096, momentum=0.0
        )
    )
    assert needed / quadratic_optimum(problem, target, 4096, momentum=0.0).epochs < 1.08


def sgd(evidence, **settings):
    observations = [
        TrainingObservation(
            item.global_batch_size,
            item.state,
            item.epochs,
            {**item.settings, "optimizer": "sgd", **settings},
            item.seed,
        )
        for item in evidence.observations
    ]
    return Evidence(observations=observations, tuned=evidence.tuned)


@functools.cache
def quadratic_evidence(momentum=0.0):
    problem, target = (
        QuadraticProblem(modes=150, curvature_exponent=1.2, noise_scale=10.0, train_samples=4_000),
        0.05,
    )
    rng = np.random.default_rng(3)
    trials = [
        TrainingObservation(
            int(batch),
            "reached",
            float(epochs * np.exp(0.03 * rng.standard_normal())),
            {"optimizer": "sgd", "learning_rate": float(rate), "momentum": momentum},
            seed,
        )
        for seed, (rate, batch, epochs) in enumerate(exact_trials(problem, target, momentum).T)
    ]
    limit = float(stability_limit(problem.curvature, momentum=momentum))
    trials += [
        TrainingObservation(
            batch,
            "diverged",
            0.25,
            {"optimizer": "sgd", "learning_rate": limit * factor, "momentum": momentum},
        )
        for batch, factor in ((16, 2.0), (64, 1.3), (256, 1.05))
    ]
    tuned = (ScaledSetting("learning_rate", "log", 1e-4, 2 * limit),)
    return problem, target, Evidence(observations=trials, samples_per_epoch=4_000.0, tuned=tuned)


@pytest.fixture(scope="module")
def of_quadratic():
    """The laws fitted to the trials of a quadratic."""
    return fit(quadratic_evidence()[2], rng=np.random.default_rng(0))


def test_trials_of_a_quadratic_choose_the_law_of_descent_and_forecast_the_truth(of_quadratic):
    problem, target, _ = quadratic_evidence()
    posterior = of_quadratic
    assert posterior.model.descent is not None
    found = forecast(posterior, 4096)
    best = quadratic_optimum(problem, target, 4096, momentum=0.0)
    assert found.epochs_to_target.low < best.epochs < found.epochs_to_target.high
    assert found.epochs_to_target.high / found.epochs_to_target.low < 2.0
    needed = float(
        epochs_to_target(
            problem,
            target,
            learning_rate=found.settings["learning_rate"].median,
            global_batch_size=4096,
            momentum=0.0,
        )
    )
    assert needed / best.epochs < 1.15
    assert {"decay", "wall"} <= set(found.laws["epochs_to_target"])


def test_a_momentum_that_is_tuned_once_for_all_rungs_is_not_taken_for_none():
    """Its trials differ in momentum, but no law scales it: the rate is chosen for their median momentum."""
    problem, target, evidence = quadratic_evidence(momentum=0.8)
    others = quadratic_evidence(momentum=0.9)[2]
    mixed = [*evidence.observations[::2], *others.observations[1::4]]
    posterior = fit(dataclasses.replace(evidence, observations=mixed), rng=np.random.default_rng(0))
    found = forecast(posterior, 64)
    best = quadratic_optimum(problem, target, 64, momentum=0.8)
    assert found.epochs_to_target.median == pytest.approx(best.epochs, rel=0.15)
    rate = found.settings["learning_rate"].median
    needed = epochs_to_target(
        problem, target, learning_rate=rate, global_batch_size=64, momentum=0.8
    )
    assert needed / best.epochs < 1.1


@pytest.mark.slow
def test_trials_that_hardly_mind_their_rate_choose_the_general_law():
    posterior = fit(sgd(sweep(Truth(), np.random.default_rng(0))), rng=np.random.default_rng(0))
    assert posterior.model.descent is None
    assert "sharpness" in forecast(posterior, 512).laws["epochs_to_target"]


def test_another_optimizer_is_never_read_by_the_law_of_descent():
    _, _, evidence = quadratic_evidence()
    other = Evidence(
        observations=sgd(evidence, optimizer="lars").observations, tuned=evidence.tuned
    )
    assert make_descent_law(evidence, evidence.observations) is not None
    assert make_descent_law(other, other.observations) is None


@pytest.mark.slow
def test_nesterov_and_untold_momenta_are_not_read_by_the_law_of_descent():
    _, _, evidence = quadratic_evidence(momentum=0.9)
    assert make_descent_law(evidence, evidence.observations) is not None
    with_nesterov = sgd(evidence, nesterov=True)
    assert make_descent_law(with_nesterov, with_nesterov.observations) is None
    tuned = (*evidence.tuned, ScaledSetting("momentum", "linear", 0.0, 0.99))
    told = dataclasses.replace(evidence, tuned=tuned)
    found = make_descent_law(told, told.observations)
    assert found is not None and found.tuned
    untold = [
        dataclasses.replace(item, settings={**item.settings, "momentum": None})
        for item in told.observations
    ]
    assert make_descent_law(told, untold) is None


@pytest.mark.slow
def test_the_rate_goes_with_the_momentum_that_is_recommended_though_all_trials_had_one():
    _, _, evidence = quadratic_evidence(momentum=0.5)
    tuned = (*evidence.tuned, ScaledSetting("momentum", "linear", 0.0, 0.99))
    told = dataclasses.replace(evidence, tuned=tuned)
    descent = make_descent_law(told, told.observations)
    law = next(
        law for law in make_laws(told, told.observations, descent) if law.name == "learning_rate"
    )
    half, more = (
        law.best(values(), np.log([16.0]), np.array([momentum]))[0, 0] for momentum in (0.5, 0.9)
    )
    assert np.exp(half - more) == pytest.approx(5.0, rel=0.05)


def test_where_momentum_sets_the_epochs_the_interval_holds_every_rate_that_serves_alike():
    """One particle at a batch where the floor is three times the free epochs: a plateau below the best rate."""
    law = DescentLaw(0.9, float(np.log(256)), float(np.log(SAMPLES)), tuned=False)
    known, batch = values(lags=30.0), np.log([3e4])
    rates = DescentRate(
        ScaledSetting("learning_rate"), 0.0, 1.0, (-5.0, 5.0), law.log_anchor, 0.0, descent=law
    )
    known |= {
        "learning_rate.log_margin": np.zeros(1),
        "learning_rate.follow": np.full(1, -9.0),
        "learning_rate.log_divergence_width": np.full(1, -4.0),
    }
    response = rates.response(known, batch)
    low, high = serve_alike(response)
    grid = response.best[0, 0] + np.linspace(-2, 2, 4001)
    alike = grid[response.cost(grid)[0] <= ALIKE]
    assert alike[0] <= low <= alike[0] + 0.3 and alike[-1] - 0.3 <= high <= alike[-1]
    assert response.best[0, 0] - low > 0.1


def test_a_rate_above_all_that_were_tried_is_a_doubt_where_none_diverged(of_quadratic):
    _, _, evidence = quadratic_evidence()
    highest = max(
        item.settings["learning_rate"] for item in evidence.observations if item.state == "reached"
    )
    stable = Evidence(
        observations=[item for item in evidence.observations if item.state == "reached"],
        samples_per_epoch=4_000.0,
        tuned=evidence.tuned,
    )
    found = forecast(fit(stable, rng=np.random.default_rng(0)), 16_384)
    assert found.settings["learning_rate"].median > highest
    assert "above all that were tried" in found.reason
    assert "above all that were tried" not in forecast(of_quadratic, 16_384).reason
