import math

import numpy as np
import pytest

from benchmarks.random_problem import random_problem
from trainers import JobError
from trainers.workloads.noisy_quadratic.dynamics import (
    apply_affine_map,
    initial_quadratic_moments,
    make_quadratic_update,
    many_steps,
    next_quadratic_moments,
    squares_without_momentum,
    stability_limit,
    stationary_quadratic_moments,
)
from trainers.workloads.noisy_quadratic.optimum import (
    critical_batch_size,
    epochs_to_target,
    fewest_samples,
    fewest_steps,
    quadratic_optimum,
)
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem
from trainers.workloads.noisy_quadratic.steps import steps_to_target
from trainers.workloads.noisy_quadratic.trajectories import SampledWeights

pytestmark = pytest.mark.slow

PROBLEM = QuadraticProblem(modes=60, noise_scale=5.0, train_samples=1024)
TARGET = 0.08
MOMENTA = [0.0, 0.5, 0.9]


def update(problem=PROBLEM, **settings):
    return make_quadratic_update(
        problem.curvature,
        problem.noise,
        **{"learning_rate": 0.2, "global_batch_size": 8, **settings},
    )


def stepped(change, steps, problem=PROBLEM):
    """The moments before each of ``steps`` updates, and after the last, by the recursion."""
    moments = [
        initial_quadratic_moments(
            np.broadcast_to(
                problem.initial_squares,
                np.broadcast_shapes(change.learning_rate.shape, problem.initial_squares.shape),
            )
        )
    ]
    for _ in range(steps):
        moments.append(next_quadratic_moments(moments[-1], change))
    return moments


def first_passage(problem, target, steps, **settings):
    """Updates to the target, counted one by one; inf beyond ``steps``."""
    change = update(problem, **settings)
    moments = stepped(change, 0, problem)[0]
    found = np.full(moments.shape[1], np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for number in range(1, steps + 1):
            moments = next_quadratic_moments(moments, change)
            found[np.isinf(found) & (problem.loss(moments[0]) <= target)] = number
    return found


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_recursion_is_the_mean_over_many_sampled_trainings(momentum, nesterov):
    problem = QuadraticProblem(modes=4, noise_scale=2.0)
    change = update(
        problem, momentum=momentum, nesterov=nesterov, learning_rate=0.3, global_batch_size=4
    )
    copies, steps = 40_000, 12
    many = make_quadratic_update(
        np.tile(problem.curvature, copies),
        np.tile(problem.noise, copies),
        learning_rate=0.3,
        global_batch_size=4,
        momentum=momentum,
        nesterov=nesterov,
    )
    sampled = SampledWeights(np.tile(problem.initial_squares, copies), seed=3)
    sampled.move(many, steps, 0)
    theta, velocity = sampled.state.reshape(2, copies, 4)
    products = np.stack([theta * theta, theta * velocity, velocity * velocity])
    errors = (products.mean(1) - stepped(change, steps, problem)[-1]) / (
        products.std(1) / math.sqrt(copies)
    )
    assert (
        np.abs(errors).max() < 4
    )  # 12 standard errors at once; one in 1,300 random seeds would be beyond


def test_pytorch_and_the_recursion_take_the_same_steps():
    torch = pytest.importorskip("torch")
    for momentum, nesterov in [(0.0, False), (0.9, False), (0.9, True)]:
        theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD(
            [theta], lr=0.3, momentum=momentum, nesterov=nesterov, weight_decay=0.1
        )
        one = QuadraticProblem(modes=1, noise_scale=0.0)
        change = update(
            one, momentum=momentum, nesterov=nesterov, weight_decay=0.1, learning_rate=0.3
        )
        for moments in stepped(change, 10, one):
            assert moments[0] == pytest.approx(theta.item() ** 2)
            optimizer.zero_grad()
            (theta**2 / 2).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("preconditioning", [0.0, 0.5, 1.0])
def test_the_closed_form_without_momentum_is_the_recursion(preconditioning):
    change = update(
        learning_rate=[0.01, 0.2, 1.1, 1.9],
        global_batch_size=[2, 8, 64, 2],
        preconditioning=preconditioning,
    )
    for steps, moments in enumerate(stepped(change, 40)):
        assert squares_without_momentum(change, PROBLEM.initial_squares, steps) == pytest.approx(
            moments[0]
        )
    with pytest.raises(ValueError, match=r"momentum must be 0 for this closed form, but got 0\.5"):
        squares_without_momentum(update(momentum=0.5), PROBLEM.initial_squares, 1)


@pytest.mark.parametrize("momentum", MOMENTA)
def test_many_steps_are_that_many_steps(momentum):
    change = update(momentum=momentum)
    moments = stepped(change, 37)
    after, total = apply_affine_map(many_steps(change, 37), moments[0])
    assert after == pytest.approx(moments[-1])
    assert total == pytest.approx(sum(each[0] for each in moments[:-1]))


@pytest.mark.parametrize("momentum", MOMENTA)
def test_the_stationary_moments_stay_and_draw_the_others_to_them(momentum):
    change = update(momentum=momentum, learning_rate=1.0)
    assert next_quadratic_moments(stationary_quadratic_moments(change), change) == pytest.approx(
        stationary_quadratic_moments(change)
    )
    after, _ = apply_affine_map(
        many_steps(change, 20_000), initial_quadratic_moments(PROBLEM.initial_squares)
    )
    assert after == pytest.approx(stationary_quadratic_moments(change))


@pytest.mark.parametrize("preconditioning", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", MOMENTA)
def test_the_moments_blow_up_beyond_the_stability_limit_and_not_before(
    momentum, nesterov, preconditioning
):
    limit = float(
        stability_limit(
            PROBLEM.curvature, momentum=momentum, nesterov=nesterov, preconditioning=preconditioning
        )
    )
    for factor, stable in [(0.999, True), (1.001, False)]:
        change = update(
            momentum=momentum,
            nesterov=nesterov,
            learning_rate=factor * limit,
            preconditioning=preconditioning,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            after, _ = apply_affine_map(
                many_steps(change, 100_000), initial_quadratic_moments(PROBLEM.initial_squares)
            )
        assert bool(after[0].max() < 1e6) == stable


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("preconditioning", [0.0, 0.5])
def test_steps_to_target_are_those_counted_one_by_one(momentum, preconditioning):
    rng = np.random.default_rng(7)
    limit = float(
        stability_limit(PROBLEM.curvature, momentum=momentum, preconditioning=preconditioning)
    )
    settings = {
        "learning_rate": limit * np.exp(rng.uniform(-7, 0.05, 100)),
        "momentum": momentum,
        "global_batch_size": 2.0 ** rng.integers(0, 14, 100),
        "preconditioning": preconditioning,
    }
    counted = first_passage(PROBLEM, TARGET, 2000, **settings)
    steps = steps_to_target(PROBLEM, TARGET, **settings)
    assert np.isfinite(counted).sum() > 20 and np.isinf(steps).sum() > 7
    assert np.array_equal(np.where(steps > 2000, np.inf, steps), counted)


def test_steps_to_target_keep_the_shape_and_mix_momenta():
    rates, momenta = np.array([[0.05], [0.2]]), np.array([0.0, 0.9, 0.5])
    steps = steps_to_target(
        PROBLEM, TARGET, learning_rate=rates, global_batch_size=512, momentum=momenta
    )
    assert steps.shape == (2, 3)
    for row, rate in enumerate(rates[:, 0]):
        for column, momentum in enumerate(momenta):
            assert steps[row, column] == steps_to_target(
                PROBLEM, TARGET, learning_rate=rate, global_batch_size=512, momentum=momentum
            )


def test_a_target_below_the_noise_floor_is_never_reached():
    assert steps_to_target(PROBLEM, TARGET, learning_rate=0.5, global_batch_size=1) == np.inf
    assert (
        steps_to_target(PROBLEM, TARGET, learning_rate=1e-3, global_batch_size=64, max_steps=10)
        == np.inf
    )


@pytest.mark.parametrize("momentum", MOMENTA)
def test_an_infinite_batch_has_no_noise(momentum):
    silent = QuadraticProblem(modes=60, noise_scale=0.0)
    for rate in (0.1, 0.5, 1.5):
        expected = first_passage(silent, TARGET, 2000, learning_rate=[rate], momentum=momentum)
        steps = steps_to_target(
            PROBLEM, TARGET, learning_rate=rate, global_batch_size=math.inf, momentum=momentum
        )
        assert steps == expected[0] < np.inf
    huge = quadratic_optimum(PROBLEM, TARGET, 2.0**40, momentum=momentum)
    assert fewest_steps(PROBLEM, TARGET, momentum=momentum) == huge.steps


@pytest.mark.parametrize("momentum", MOMENTA)
def test_small_batches_scale_perfectly_whatever_the_momentum(momentum):
    samples = fewest_samples(PROBLEM, TARGET)
    for batch in (2.0**-6, 2.0**-4):
        best = quadratic_optimum(PROBLEM, TARGET, batch, momentum=momentum)
        assert best.steps * batch == pytest.approx(samples, rel=2e-3)
    # at a small rate, settings that share lr / B share their epochs
    rates = 1e-3 * 2.0 ** np.arange(4) * (1 - momentum)
    epochs = epochs_to_target(
        PROBLEM,
        TARGET,
        learning_rate=rates,
        global_batch_size=2.0 ** np.arange(4),
        momentum=momentum,
    )
    assert epochs == pytest.approx(epochs[0], rel=1e-2)


@pytest.mark.parametrize("preconditioning", [0.0, 0.5])
@pytest.mark.parametrize("momentum", MOMENTA)
def test_the_best_settings_need_fewer_steps_and_larger_rates_at_larger_batches(
    momentum, preconditioning
):
    found = [
        quadratic_optimum(
            PROBLEM, TARGET, 4.0**power, momentum=momentum, preconditioning=preconditioning
        )
        for power in range(0, 11)
    ]
    steps, rates = [each.steps for each in found], [each.learning_rate for each in found]
    assert steps == sorted(steps, reverse=True) and steps[0] > 100 * steps[-1]
    assert rates[:6] == sorted(rates[:6]) and rates[5] > 100 * rates[0]
    limit = stability_limit(PROBLEM.curvature, momentum=momentum, preconditioning=preconditioning)
    assert all(rate < limit for rate in rates)


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("batch", [4, 64, 2**20])
def test_the_optimum_beats_every_rate_of_a_fine_grid(momentum, batch):
    best = quadratic_optimum(PROBLEM, TARGET, batch, momentum=momentum)
    rates = np.geomspace(1e-5, float(stability_limit(PROBLEM.curvature, momentum=momentum)), 3000)
    steps = steps_to_target(
        PROBLEM, TARGET, learning_rate=rates, global_batch_size=batch, momentum=momentum
    )
    assert best.steps <= steps.min() <= best.steps * 1.001
    assert best.steps == steps_to_target(
        PROBLEM,
        TARGET,
        learning_rate=best.learning_rate,
        global_batch_size=batch,
        momentum=momentum,
    )
    assert best.epochs == best.steps * batch / 1024
    equals = rates[steps == steps.min()]
    assert equals.min() * 0.99 <= best.learning_rate <= equals.max() * 1.01


def test_the_best_momentum_is_no_worse_than_any():
    best = quadratic_optimum(PROBLEM, TARGET, 2.0**20, momentum=None)
    fixed = [
        quadratic_optimum(PROBLEM, TARGET, 2.0**20, momentum=momentum).steps
        for momentum in np.arange(0, 1, 0.1)
    ]
    assert best.steps <= min(fixed) < fixed[0] and 0 < best.momentum < 0.99


def test_the_critical_batch_size_is_where_the_limits_meet_and_moves_with_the_noise():
    critical = critical_batch_size(PROBLEM, TARGET)
    assert critical == fewest_samples(PROBLEM, TARGET) / fewest_steps(PROBLEM, TARGET)
    best = quadratic_optimum(PROBLEM, TARGET, critical)
    assert (
        1.2 < best.steps / fewest_steps(PROBLEM, TARGET) < 2.5
    )  # a hyperbola's would be exactly 2
    noisier = QuadraticProblem(modes=60, noise_scale=15.0, train_samples=1024)
    assert critical_batch_size(noisier, TARGET) == pytest.approx(3 * critical)
    assert (
        quadratic_optimum(noisier, TARGET, 192).steps
        == quadratic_optimum(PROBLEM, TARGET, 64).steps
    )


def test_momentum_and_preconditioning_extend_perfect_scaling():
    plain = critical_batch_size(PROBLEM, TARGET)
    assert critical_batch_size(PROBLEM, TARGET, momentum=0.5) > 1.5 * plain
    assert fewest_steps(PROBLEM, TARGET, preconditioning=0.5) < fewest_steps(PROBLEM, TARGET) / 2


@pytest.mark.parametrize("target", [0.0, -1.0, 5.0, math.nan])
def test_a_target_that_makes_no_sense_is_refused(target):
    for search in (fewest_samples, fewest_steps, lambda *given: quadratic_optimum(*given, 16)):
        with pytest.raises(
            JobError, match=r"target_loss must be above 0.*below the initial loss 2\.34"
        ):
            search(PROBLEM, target)


def test_random_problems_have_the_critical_batches_and_epochs_that_were_drawn():
    drawn = [random_problem(np.random.default_rng(seed)) for seed in range(4)]
    critical = [critical_batch_size(problem, target) for problem, target in drawn]
    assert (
        min(critical) >= 2**4 * 0.999
        and max(critical) <= 2**14 * 1.001
        and max(critical) > 20 * min(critical)
    )
    epochs = [fewest_samples(problem, target) / problem.train_samples for problem, target in drawn]
    assert min(epochs) > 4.9 and max(epochs) < 41
    assert random_problem(np.random.default_rng(3)) == drawn[3]


def test_every_move_draws_fresh_noise_and_the_same_move_the_same():
    still = make_quadratic_update(
        np.ones(1000), np.full(1000, 4.0), learning_rate=0.0, global_batch_size=4
    )
    noise = []
    for first_step in (0, 5, 5):
        sampled = SampledWeights(np.zeros(1000), seed=1)
        sampled.move(still, 5, first_step)
        noise.append(
            sampled.state[1]
        )  # without momentum the velocity is the last gradient, here noise alone
    assert np.array_equal(noise[1], noise[2])
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.15 and noise[0].std() == pytest.approx(
        1, abs=0.1
    )
