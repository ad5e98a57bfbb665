import copy
import dataclasses
import itertools
import math

import pytest

from search_spaces.settings import TrainingSettings
from trainers import JobError, Target, TrainingJob
from trainers.begin import begin_training
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.synchronous import SynchronousTraining
from trainers.schedules.batch_size import batch_factor, batch_schedule
from trainers.schedules.learning_rate import learning_rate
from trainers.workloads.noisy_quadratic.dynamics import (
    initial_quadratic_moments,
    make_quadratic_update,
    next_quadratic_moments,
)
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

IMAGENET = 1_281_167
SMITH = TrainingSettings(
    learning_rate=3.0,
    decay="step",
    decay_milestones=(30.0, 60.0, 80.0),
    decay_factor=0.1,
    batch_control="grow",
)
MIKAMI = TrainingSettings(
    learning_rate=1.0, batch_control="piecewise", batch_milestones=(30.0,), batch_factors=(2.0,)
)


def sizes_and_rates(settings, batch, epochs):
    return [(batch_factor(settings, at) * batch, learning_rate(settings, at, 90)) for at in epochs]


@pytest.mark.parametrize("rule", ["none", "linear", "sqrt"])
def test_a_doubling_batch_follows_its_planned_times_and_ends_at_its_limit(rule):
    settings = TrainingSettings.from_record(
        {
            "learning_rate": 0.1,
            "batch_control": "doubling",
            "doubling_epochs": 1.0,
            "doubling_spacing": 2.0,
            "batch_limit_factor": 6.0,
            "batch_rate_rule": rule,
        }
    )
    wanted = {0.0: 1, 0.99: 1, 1.0: 2, 1.9: 2, 2.0: 4, 3.9: 4, 4.0: 6, 8.0: 6, 50.0: 6}
    power = {"none": 0, "linear": 1, "sqrt": 0.5}[rule]
    for epochs, factor in wanted.items():
        assert batch_factor(settings, epochs) == factor
        assert learning_rate(settings, epochs, 10) == pytest.approx(0.1 * factor**power)
    course = batch_schedule(settings, 16, 1024, 10, 1)
    assert [phase.global_batch_size for phase in course.phases] == [16, 32, 64, 96]
    assert [phase.first_sample / 1024 for phase in course.phases] == [0, 1, 2, 4]
    # 64 updates of the first epoch, 32 of the second, 16 of each of two, then 1024 / 96 an epoch
    assert course.total_steps == 64 + 32 + 32 + 64


def test_smith_grows_the_batch_tenfold_where_the_rate_would_drop_tenfold():
    plain = SMITH.replace(batch_control="constant")
    for at in (0, 29.99, 30, 59.9, 60, 80, 89):
        (size, rate), (_, dropped) = (
            sizes_and_rates(each, 256, [at])[0] for each in (SMITH, plain)
        )
        assert rate == pytest.approx(3.0)
        assert rate / size == pytest.approx(dropped / 256)  # the noise scale, lr N / B, is the same


def test_smith_first_grows_and_then_decays_at_the_limit():
    # arXiv:1711.00489, figure 1: from 8192 to a limit; what the batch cannot take, the rate does
    settings = SMITH.replace(decay_factor=0.5, batch_limit_factor=2.0)
    assert sizes_and_rates(settings, 8192, (0, 30, 60, 80)) == [
        (8192, 3.0),
        (16384, 3.0),
        (16384, 1.5),
        (16384, 0.75),
    ]


def test_nothing_grows_during_the_warmup():
    settings = SMITH.replace(warmup_epochs=40.0)
    at = batch_schedule(settings, 100, 1000, 90, 1)
    assert [phase.global_batch_size for phase in at.phases] == [100, 1000, 10000, 100000]
    assert at.phases[1].first_sample == 40_000


def test_mikami_goes_from_34k_to_68k():
    # arXiv:1811.05233v1: 2176 GPUs with 16 and then 32 images each
    at = batch_schedule(MIKAMI, 34816, IMAGENET, 90, 1)
    assert [phase.global_batch_size for phase in at.phases] == [34816, 69632]
    first = at.phases[1].first_step
    assert (first - 1) * 34816 < 30 * IMAGENET <= first * 34816 == at.samples(first)
    assert at.samples(at.total_steps - 1) < 90 * IMAGENET <= at.samples(at.total_steps)


@pytest.mark.parametrize(
    ("rule", "factor"), [("none", 1.0), ("linear", 2.0), ("sqrt", math.sqrt(2))]
)
def test_the_rate_follows_the_chosen_rule(rule, factor):
    settings = MIKAMI.replace(batch_rate_rule=rule, decay="step", decay_milestones=(60.0,))
    assert [learning_rate(settings, at, 90) for at in (29.9, 30, 60)] == pytest.approx(
        [1.0, factor, factor / 10]
    )


@pytest.mark.parametrize("batch", [1, 7, 100, 256, 5000])
@pytest.mark.parametrize("epochs", [0.01, 1, 3.7])
def test_a_constant_batch_takes_the_steps_that_cover_the_budget(batch, epochs):
    at = batch_schedule(TrainingSettings(), batch, 1000, epochs, 4)
    assert at.total_steps == max(1, math.ceil(epochs * 1000 / batch - 1e-9))
    assert all(at.samples(number) == number * batch for number in (0, 1, 17))
    every = max(1, round(1000 / batch / 4))
    assert [at.next_evaluation(number) for number in range(at.total_steps)] == [
        min(at.total_steps, (number // every + 1) * every) for number in range(at.total_steps)
    ]


@pytest.mark.parametrize(
    "milestones", [(0.3, 0.9, 2.2), (0.1 * 3, 0.1 * 7, 1.1), (1.0, 1.001, 1.002), (2.0, 3.0, 50.0)]
)
def test_batch_and_rate_change_with_the_same_update_and_no_sample_is_lost(milestones):
    settings = TrainingSettings(
        batch_control="piecewise",
        batch_milestones=milestones,
        batch_factors=(2.0, 1.0, 4.0),
        batch_rate_rule="linear",
        learning_rate=1.0,
    )
    at = batch_schedule(settings, 10, 100, 5, 4)
    for number in range(at.total_steps):
        size = at.phase(number).global_batch_size
        assert at.samples(number + 1) == at.samples(number) + size
        assert learning_rate(settings, at.samples(number) / 100, 5) == size / 10
    assert at.samples(at.total_steps - 1) < 500 <= at.samples(at.total_steps)


def test_a_phase_ends_with_an_evaluation_and_counts_its_own():
    at = batch_schedule(MIKAMI.replace(batch_milestones=(1.05,)), 10, 100, 3, 2)
    steps = [0]
    while steps[-1] < at.total_steps:
        steps.append(at.next_evaluation(steps[-1]))
    assert steps == [0, 5, 11, 13, 15, 17, 19, 21]  # 11 updates of 10 samples, then 10 of 20
    assert all(
        at.phase(before) == at.phase(after - 1) for before, after in itertools.pairwise(steps)
    )


def test_a_factor_that_gives_no_whole_batch_is_named():
    with pytest.raises(
        JobError, match=r"batch_factors must give whole .*epoch 30 on is 15\.5 \(1\.55"
    ):
        batch_schedule(MIKAMI.replace(batch_factors=(1.55,)), 10, 1000, 90, 1)
    with pytest.raises(
        JobError, match=r"decay_factor and batch_limit_factor must give .* is 33\.3"
    ):
        batch_schedule(SMITH.replace(decay_factor=0.3), 10, 1000, 90, 1)
    batch_schedule(
        SMITH.replace(decay_factor=0.3), 10, 1000, 29, 1
    )  # beyond the budget it does not matter


def digits(**settings):
    recipe = TrainingSettings.from_record(
        {"learning_rate": 0.1, "normalization_batch_size": 8, **settings}
    )
    return TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        settings=recipe,
        global_batch_size=32,
        seed=1,
        epochs=1.2,
        evaluations_per_epoch=2,
    )


@pytest.mark.medium
def test_a_training_goes_through_its_phases_with_every_sample_once_an_epoch():
    task = digits(batch_control="piecewise", batch_milestones=(0.5, 1.0), batch_factors=(4.0, 2.0))
    training = SynchronousTraining(task, SingleProcessCommunicator())
    seen, load = [], training.workload.training_batch

    def spy(indices, epochs, seed):
        seen.extend(zip(epochs.tolist(), indices.tolist(), strict=True))
        return load(indices, epochs, seed)

    training.workload.training_batch = spy
    points = []
    while not training.finished:
        points.append(training.advance())
    assert [point.global_batch_size for point in points] == [
        32,
        128,
        64,
    ]  # no evaluation at update 22
    assert [point.samples for point in points] == [
        23 * 32,
        23 * 32 + 6 * 128,
        23 * 32 + 6 * 128 + 4 * 64,
    ]
    assert (
        len({index for epoch, index in seen if epoch == 0})
        == 1437
        == sum(epoch == 0 for epoch, _ in seen)
    )
    assert points[-1].epochs == points[-1].samples / 1437


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_control": "piecewise", "batch_milestones": (0.5,), "batch_factors": (1.125,)},
            "batch_factors, which lead from global_batch_size 32 to 36 at update 23: normalization_batch_size must "
            "divide",
        ),
        (
            {
                "batch_control": "grow",
                "decay": "step",
                "decay_milestones": (0.5,),
                "batch_limit_factor": 1.375,
            },
            "batch_control 'grow', which leads from global_batch_size 32 to 44 at update 23: "
            "normalization_batch_size must",
        ),
    ],
)
def test_a_phase_that_is_no_whole_groups_names_the_setting(settings, message):
    with pytest.raises(JobError, match=message):
        SynchronousTraining(digits(**settings), SingleProcessCommunicator())


def quadratic(**settings):
    recipe = TrainingSettings.from_record(
        {"learning_rate": 0.2, "momentum": 0.0, "weight_decay": 0.0, **settings}
    )
    return TrainingJob(
        workload="noisy_quadratic",
        data={"modes": 50, "noise_scale": 2.0, "train_samples": 512},
        settings=recipe,
        seed=0,
        target=Target("loss", 1e-9, higher_is_better=False),
        global_batch_size=16,
        epochs=4,
        evaluations_per_epoch=4,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {
            "batch_control": "piecewise",
            "batch_milestones": (1.0, 2.5),
            "batch_factors": (4.0, 2.0),
            "batch_rate_rule": "sqrt",
        },
        {
            "batch_control": "grow",
            "decay": "step",
            "decay_milestones": (1.0, 2.0, 3.0),
            "decay_factor": 0.25,
            "batch_limit_factor": 8.0,
            "momentum": 0.5,
            "warmup_epochs": 0.3,
        },
    ],
)
def test_the_noisy_quadratic_follows_the_recursion_through_every_phase(settings):
    task = quadratic(**settings)
    training = begin_training(task)
    points = []
    while not training.finished:
        points.append(training.advance())
    problem, given, samples = QuadraticProblem.from_data(task.data), task.settings, 0
    moments, losses = initial_quadratic_moments(problem.initial_squares), {}
    while samples < 4 * 512:
        batch = round(16 * batch_factor(given, samples / 512))
        moments = next_quadratic_moments(
            moments,
            make_quadratic_update(
                problem.curvature,
                problem.noise,
                global_batch_size=batch,
                learning_rate=learning_rate(given, samples / 512, 4),
                momentum=given.momentum,
            ),
        )
        samples += batch
        losses[samples] = float(problem.loss(moments[0]))
    assert {point.samples: point.loss for point in points} == pytest.approx(
        {point.samples: losses[point.samples] for point in points}
    )
    assert points[-1].samples == samples and len({point.global_batch_size for point in points}) == 3
    assert points[-1].seconds == pytest.approx(points[-1].step * 0.001 + samples * 0.0001)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("optimizer", {"optimizer": "adam"}),
        ("momentum_form", {"momentum_form": "inside"}),
        ("gradient_clip_norm", {"gradient_clip_norm": 1.0}),
        ("gradient_lag", {"gradient_lag": 1}),
        ("update_mode", {"update_mode": "asynchronous"}),
        ("adascale_batch_size", {"adascale_batch_size": 8}),
        ("gradient_reduction", {"gradient_reduction": "adasum"}),
        ("weight_norm_limit", {"weight_norm_limit": 10.0}),
    ],
)
def test_the_noisy_quadratic_refuses_what_it_does_not_model(name, settings):
    with pytest.raises(JobError, match=f"the noisy quadratic models {name} "):
        begin_training(quadratic(**settings))


def by_noise(**changes):
    """A quadratic whose noise scale grows by more than the limit allows the batch to."""
    return quadratic(batch_control="noise_scale", **changes)


@pytest.mark.parametrize("rule", ["none", "linear", "sqrt"])
def test_a_batch_by_the_noise_scale_is_the_published_rule_at_every_evaluation(rule):
    """Twice the batch where the noise scale is as large as that, never more than once, up to the limit."""
    task = by_noise(noise_scale_ratio=0.5, batch_limit_factor=8.0, batch_rate_rule=rule)
    points, batch = finished(begin_training(task)), 16
    assert points[0].gradient_noise_scale > 0
    for point in points:
        assert point.global_batch_size == batch
        assert point.learning_rate == pytest.approx(
            task.settings.learning_rate
            * {"none": 1.0, "linear": batch / 16, "sqrt": (batch / 16) ** 0.5}[rule]
        )
        if 2 * batch <= 8 * 16 and point.gradient_noise_scale >= 0.5 * 2 * batch:
            batch *= 2
    assert batch > 32


def test_a_batch_by_the_noise_scale_stays_where_the_noise_is_small_and_goes_on_from_its_state():
    still = finished(begin_training(by_noise(noise_scale_ratio=1e9)))
    assert {point.global_batch_size for point in still} == {16}
    task = by_noise(noise_scale_ratio=0.5, batch_limit_factor=8.0)
    whole = begin_training(task)
    halves = [whole.advance() for _ in range(6)]
    state = whole.state_dict()
    assert len(state["batch_growth"]) > 1
    again = begin_training(task)
    again.load_state_dict(state)
    rest = finished(whole)
    assert [vars(each) for each in finished(again)] == [vars(each) for each in rest]
    assert halves[-1].step < rest[0].step


def finished(training):
    points = []
    while not training.finished:
        points.append(training.advance())
    return points


@pytest.mark.medium
def test_a_model_whose_batch_follows_its_noise_goes_on_from_a_checkpoint():
    task = dataclasses.replace(
        digits(batch_control="noise_scale", noise_scale_ratio=0.25, batch_limit_factor=4.0),
        epochs=4,
    )
    training = SynchronousTraining(task, SingleProcessCommunicator())
    points, states = [], []
    while not training.finished:
        states.append(copy.deepcopy(training.state_dict()))
        points.append(training.advance())
    sizes = [point.global_batch_size for point in points]
    assert sizes == sorted(sizes) and {32, 64} <= set(sizes) <= {32, 64, 128}
    for before, after in itertools.pairwise(points):
        noise = before.gradient_noise_scale or 0.0
        grows = noise >= 0.25 * 2 * before.global_batch_size
        doubled = min(128, before.global_batch_size * (2 if grows else 1))
        assert after.global_batch_size == doubled
    halt = sizes.index(64) + 1
    resumed = SynchronousTraining(task, SingleProcessCommunicator())
    resumed.load_state_dict(states[halt])
    rest = finished(resumed)
    for one, other in zip(rest, points[halt:], strict=True):
        assert {**vars(one), "seconds": 0} == {**vars(other), "seconds": 0}
