"""What to train next: gains in a model with a known answer, curves with a known crossing, the search's rules."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from test_strategy import a_trial

from hpo.extrapolation.evidence.evidence import ScaledSetting, TrainingObservation
from hpo.study.spec import StudySpec
from hpo.tuning.generation import search as generation_search
from hpo.tuning.generation.curves import (
    LearningCurve,
    compare_curves,
    is_hopeless,
    predict_crossing,
)
from hpo.tuning.generation.search import (
    ALIKE,
    BEGUN,
    CONFIRMED,
    DEPTH,
    FAILURES,
    LOST,
    WORTH,
    SeenTraining,
    SettingsSearch,
)
from hpo.tuning.generation.search_sampler import ForecastSampler
from hpo.tuning.generation.shapes import MOST, RELIEF, WARMUP_COST, ResponseShapes
from hpo.tuning.generation.surface import (
    EARLY_ERROR,
    EARLY_LENGTH,
    EARLY_POWER,
    LEAST_RAMP,
    LEVEL_SD,
    EpochsSurface,
    SettingPlaces,
    TrainingEstimates,
    expected_fall,
    own_error,
    ramp_of,
)
from storage.records import ConvergencePoint, TrialState

pytestmark = pytest.mark.fit

TUNED = (ScaledSetting("learning_rate", "log", 0.01, 4.0),)
LADDER = (16, 32, 64)


def outcome(batch, rate):
    """10 (1 + B / 64) epochs at the best rate 0.05 sqrt(B), more by the square of the miss; diverges above 2."""
    if rate > 2:
        return TrainingObservation(batch, "diverged", 0.25, {"learning_rate": rate})
    epochs = 10 * (1 + batch / 64) * math.exp(0.3 * math.log(rate / (0.05 * math.sqrt(batch))) ** 2)
    state = "reached" if epochs < 60 else "censored"
    return TrainingObservation(batch, state, min(epochs, 60), {"learning_rate": rate})


def curve(needed, until, target=0.9):
    """A metric that goes its way in a straight line, to the target after ``needed`` epochs."""
    epochs = [0.5 * (at + 1) for at in range(int(2 * until))]
    return epochs, [target * at / needed for at in epochs]


def learning_curve(needed, until):
    epochs, metric = curve(needed, until)
    return LearningCurve(epochs, (metric, [each - 1 for each in metric]))


def test_curves_of_one_shape_tell_by_what_factor_one_is_quicker():
    reference = learning_curve(10.0, 10.0)
    for needed in (5.0, 20.0):
        found = compare_curves(learning_curve(needed, 4.0), reference)
        assert found.log_quotient == pytest.approx(math.log(needed / 10), abs=0.1)
        # the level is that of the last two evaluations, half an epoch apart
        assert found.reference_epochs == pytest.approx(3.75 * 10 / needed, rel=0.01)


def test_one_that_is_further_than_the_reference_has_come_is_compared_at_the_reference_level():
    found = compare_curves(learning_curve(5.0, 5.0), learning_curve(10.0, 2.0))
    assert found.log_quotient == pytest.approx(math.log(0.5), abs=1e-6)


def test_a_training_that_has_fallen_back_counts_as_it_stands():
    epochs, metric = curve(10.0, 6.0)
    fallen = LearningCurve(epochs, ([*metric[:-2], 0.1, 0.1], None))
    standing = LearningCurve(epochs, (metric, None))
    reference = learning_curve(10.0, 10.0)
    assert compare_curves(fallen, reference).log_quotient > 1
    assert compare_curves(standing, reference).log_quotient == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("metric", [[math.nan] * 8, []])
def test_a_signal_that_was_not_measured_tells_nothing(metric):
    epochs = [0.5 * (at + 1) for at in range(8)]
    reference = learning_curve(10.0, 10.0)
    assert compare_curves(LearningCurve(epochs, (metric, None)), reference) is None
    whole = learning_curve(10.0, 4.0)
    half = LearningCurve(whole.epochs, (whole.signals[0], [math.nan] * 8))
    assert compare_curves(half, reference).log_quotient == pytest.approx(0.0, abs=1e-6)


def places(rates, batch=64.0, warmup=0.0):
    rates = np.asarray(rates, dtype=float)
    count = len(rates)
    return SettingPlaces(
        rates[:, None], rates, np.full(count, warmup), np.full(count, math.log(batch))
    )


SHAPES = ResponseShapes.between(-2.0, 2.0)
ONE_SHAPE = ResponseShapes(np.array([1.0]), np.array([0.0]), np.array([1.0]))
"""The edge is known."""
AMPLITUDE = 0.5


def a_surface(rates, told, share=1.0, shapes=ONE_SHAPE):
    shares = np.full(len(rates), share)
    told = np.asarray(told, dtype=float)
    seen = TrainingEstimates(
        places(rates), told, shares, own_error(shares), shares == 1, np.zeros(len(rates))
    )
    return EpochsSurface(shapes, AMPLITUDE, seen)


def conditioned(shape, at, told, asked, share):
    """Mean and covariance where the shape is known, and the log likelihood of what was told, from the joint normal."""

    def matern(x, y, length=1.0):
        d = math.sqrt(5) * abs(x - y) / length
        return (1 + d + d * d / 3) * math.exp(-d)

    def true(x, y):
        return AMPLITUDE**2 * matern(x, y) + LEVEL_SD**2

    def look(x, y):
        shared = (early * EARLY_ERROR) ** 2 * matern(x, y, EARLY_LENGTH)
        return true(x, y) + shared + (x == y) * float(own_error(share)) ** 2

    early, none = (1 - share) ** EARLY_POWER, np.zeros(len(at))
    seen = np.array([[look(x, y) for y in at] for x in at])
    across = np.array([[true(x, y) for y in at] for x in asked])
    left = told - shape.shown(at, none, np.full(len(at), share))[0]
    mean = shape.epochs(asked, np.zeros(len(asked)))[0] + across @ np.linalg.solve(seen, left)
    own = np.array([[true(x, y) for y in asked] for x in asked])
    likelihood = -0.5 * left @ np.linalg.solve(seen, left)
    return mean, own - across @ np.linalg.solve(seen, across.T), likelihood


def test_a_surface_is_what_conditioning_a_normal_distribution_gives():
    """Against the joint distribution of looks and places, written out with its covariances."""
    at, told = np.array([-1.0, 0.5]), np.array([0.7, -0.2])
    asked, share = np.array([0.0, 2.0]), 0.4
    mean, covariance, _ = conditioned(ONE_SHAPE, at, told, asked, share)
    found = a_surface(at, told, share).log_epochs(places(asked))
    assert found[0] == pytest.approx(mean, abs=1e-5)
    assert found[1] == pytest.approx(covariance, abs=1e-5)


def test_where_the_edge_is_not_known_a_surface_is_the_mixture_over_its_places():
    """Mean and covariance of a mixture, from each of its parts by itself (the law of total covariance)."""
    at, told = np.array([-1.0, 0.5, 1.5]), np.array([0.7, -0.2, 1.1])
    asked, share = np.array([0.0, 2.0]), 0.4
    parts = []
    for edge, slope, weight in zip(SHAPES.edges, SHAPES.slopes, SHAPES.weights, strict=True):
        one = ResponseShapes(np.array([edge]), np.array([slope]), np.ones(1))
        mean, covariance, likelihood = conditioned(one, at, told, asked, share)
        parts.append((weight * math.exp(likelihood), mean, covariance))
    total = sum(weight for weight, _, _ in parts)
    mean = sum(weight * each for weight, each, _ in parts) / total
    covariance = sum(
        weight * (each + np.outer(own - mean, own - mean)) for weight, own, each in parts
    )
    surface = a_surface(at, told, share, SHAPES)
    found = surface.log_epochs(places(asked))
    assert surface.weights == pytest.approx([weight / total for weight, _, _ in parts], abs=1e-6)
    assert found[0] == pytest.approx(mean, abs=1e-5)
    assert found[1] == pytest.approx(covariance / total, abs=1e-5)


def test_epochs_fall_with_the_rate_up_to_the_edge_and_rise_beyond_it():
    one = ResponseShapes(np.array([1.0]), np.array([0.0]), np.array([1.0]))
    rates = np.linspace(-4.0, 3.0, 71)
    log_epochs = one.epochs(rates, np.zeros(71))[0]
    lowest = int(np.argmin(log_epochs))
    assert -1.0 < rates[lowest] < 1.0
    assert np.all(np.diff(log_epochs[: lowest + 1]) <= 0) and np.all(
        np.diff(log_epochs[lowest:]) >= 0
    )
    assert log_epochs[-1] == MOST
    # the further below it, the nearer to the inverse of the rate
    slopes = -np.diff(log_epochs[log_epochs < MOST][:lowest:5]) / 0.5
    assert slopes[0] > 0.8 and np.all(np.diff(slopes[:6]) < 0)


def test_a_warmup_moves_the_edge_and_costs_the_same_everywhere_below_it():
    one = ResponseShapes(np.array([1.0]), np.array([0.0]), np.array([1.0]))
    short, long = (
        one.epochs(np.array([-1.5]), np.zeros(1)),
        one.epochs(np.array([-1.5]), np.ones(1)),
    )
    assert long[0, 0] - short[0, 0] == pytest.approx(WARMUP_COST, abs=0.01)
    moved = RELIEF * (1 - math.exp(-2))
    beyond = np.array([1.0])
    assert one.epochs(beyond + moved, np.ones(1))[0, 0] - WARMUP_COST == pytest.approx(
        one.epochs(beyond, np.zeros(1))[0, 0], abs=0.05
    )


def test_first_evaluations_show_less_of_what_is_slow_and_of_the_edge_than_later_ones():
    one = ResponseShapes(np.array([1.0]), np.array([0.0]), np.array([1.0]))
    rates, none = np.array([-3.0, 0.0, 1.2]), np.zeros(3)
    early, later = (one.shown(rates, none, np.full(3, share))[0] for share in (0.1, 0.9))
    whole = one.epochs(rates, none)[0]
    for at in (0, 2):
        assert early[at] - early[1] < later[at] - later[1] < whole[at] - whole[1]


def test_a_training_that_was_lost_moves_the_edge_below_it_and_one_that_arrived_above():
    likely = [
        float(surface.weights @ SHAPES.edges)
        for surface in (
            a_surface([-0.5, 0.5], [0.0, 1.6], 1.0, SHAPES),
            a_surface([-0.5], [0.0], 1.0, SHAPES),
            a_surface([-0.5, 0.5], [0.0, -0.1], 1.0, SHAPES),
        )
    ]
    assert likely[0] < likely[1] < likely[2]


def test_short_looks_leave_what_neighbours_err_by_in_common_and_a_whole_training_does_not():
    def left(share, count):
        surface = a_surface(np.linspace(-0.01, 0.01, count), np.zeros(count), share)
        two = places([0.0, 3.0])
        _, covariance = surface.log_epochs(two)
        return math.sqrt(covariance[0, 0])

    assert left(0.1, 40) > 0.5 * (1 - 0.1) ** EARLY_POWER * EARLY_ERROR
    assert left(1.0, 40) < 0.05
    assert left(1.0, 1) > left(1.0, 4) > left(1.0, 40)


def test_what_one_more_training_moves_is_by_how_much_it_narrows_the_surface():
    surface, asked = a_surface([-1.0, 1.0], [0.3, 0.1]), places([0.0, 2.0])
    before = surface.log_epochs(asked)[1]
    moved = surface.after(asked, places([0.5]), 1.0, float(own_error(1.0)))[:, 0]
    after = a_surface([-1.0, 1.0, 0.5], [0.3, 0.1, 0.0]).log_epochs(asked)[1]
    assert before - after == pytest.approx(np.outer(moved, moved), abs=1e-5)


def test_the_expected_fall_of_the_lowest_mean():
    """E[min(0, Z)] = -1 / sqrt(2 pi) where one of two equal means moves by Z and the other stands."""
    found = expected_fall(np.zeros(2), np.array([[1.0], [0.0]]))
    assert found[0] == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.15)  # nine nodes
    assert expected_fall(np.zeros(2), np.zeros((2, 1)))[0] == pytest.approx(0.0, abs=1e-12)
    assert expected_fall(np.array([0.0, 9.0]), np.array([[0.0], [1.0]]))[0] < 1e-6


def test_batches_share_the_surface_but_not_their_level():
    near, far = places([0.0]), places([0.0], batch=128.0)
    seen = TrainingEstimates(
        near,
        np.array([5.0]),
        np.ones(1),
        own_error(np.ones(1)),
        np.ones(1, dtype=bool),
        np.zeros(1),
    )
    own = EpochsSurface(ONE_SHAPE, AMPLITUDE, seen)
    here, there = (own.log_epochs(each)[0][0] for each in (near, far))
    assert here == pytest.approx(5.0, abs=0.1)
    assert abs(there) < 1.0


def test_power_laws_and_exponentials_cross_where_they_do():
    epochs = np.arange(1, 21) * 0.5
    for curve, at in (
        (lambda t: 2 * t**-0.5, 40.0),
        (lambda t: 0.1 + 3 * np.exp(-t / 8), 8 * math.log(3 / 0.2162)),
    ):
        crossing = predict_crossing(epochs, curve(epochs), float(curve(at)))
        assert crossing.low <= at <= crossing.high
        assert crossing.median == pytest.approx(at, rel=0.25)


def test_a_rising_metric_is_read_like_a_falling_one():
    epochs = np.arange(1, 21) * 0.5
    falling = predict_crossing(epochs, epochs**-0.5, 0.2)
    rising = predict_crossing(epochs, 1 - epochs**-0.5, 0.8)
    assert falling.median == pytest.approx(rising.median)


def test_a_curve_that_ends_above_its_target_is_hopeless_and_one_that_is_on_its_way_is_not():
    epochs = list(np.arange(1, 41) * 0.25)
    flat = [0.5 + 0.5 * math.exp(-at) for at in epochs]
    assert is_hopeless(epochs, flat, 0.1, 30)
    assert not is_hopeless(epochs[:8], flat[:8], 0.1, 30)  # too early to tell
    falling = [at**-1.0 for at in epochs]
    assert not is_hopeless(epochs, falling, 0.1, 12)  # crosses at epoch 10


@pytest.mark.parametrize("metric", [[math.nan] * 20, [1.0] * 20, [0.5]])
def test_curves_that_tell_nothing_predict_nothing(metric):
    assert predict_crossing(np.arange(1, len(metric) + 1), metric, 0.1) is None


def train(step, number):
    """As :func:`outcome`, for as long as the step says, with a straight curve; it diverges above 3."""
    batch, rate = step.global_batch_size, step.settings["learning_rate"]
    away = math.log(rate / (0.05 * math.sqrt(batch)))
    needed, lost = 10 * (1 + batch / 64) * math.exp(0.3 * away**2), rate > 3
    epochs, metric = curve(needed, min(step.until_epochs + 0.5, needed))
    if lost:
        epochs, metric = [0.5], [0.0]
    arrived = not lost and epochs and epochs[-1] >= needed - 0.5
    state = "diverged" if lost else "reached" if arrived else "paused"
    return SeenTraining(
        number,
        batch,
        step.settings,
        number,
        epochs,
        metric,
        state,
        epochs[-1] if arrived else None,
    )


def a_search(rungs=(*LADDER, 1024), **options):
    options = {"most_epochs": 800, "resolution": 0.5, "goal": 0.9, **options}
    return SettingsSearch(rungs, 1024, TUNED, **options)


def searched(search, most=40):
    seen = []
    while len(seen) < most and (step := search.next(seen)) is not None:
        seen.append(train(step, len(seen)))
    return seen


@pytest.fixture(scope="module")
def a_whole_search():
    return searched(a_search())


def test_a_search_ends_by_itself_near_the_best_rate(a_whole_search):
    """The best rate at 1024 is 1.6; a factor of 2 off it costs 14 % of the epochs."""
    assert a_search().next(a_whole_search) is None
    rate = a_search().recommendation(a_whole_search)["learning_rate"]
    assert 1.6 / 2 < rate < 1.6 * 2


def test_a_search_has_seen_its_recommendation_arrive_at_full_scale(a_whole_search):
    arrived = [
        each
        for each in a_whole_search
        if each.global_batch_size == 1024 and each.state == "reached"
    ]
    assert len(arrived) >= CONFIRMED
    rate = a_search().recommendation(a_whole_search)["learning_rate"]
    assert any(abs(math.log(each.settings["learning_rate"] / rate)) < ALIKE for each in arrived)


def test_while_all_are_lost_lower_rates_are_tried_and_recommended():
    search, seen = a_search(), []
    for number in range(4):
        step = search.next(seen)
        seen.append(SeenTraining(number, 1024, step.settings, number, (), (), "diverged"))
    places = [math.log(each.settings["learning_rate"] / 0.01) / math.log(400) for each in seen]
    assert places == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    assert search.recommendation(seen)["learning_rate"] < seen[-1].settings["learning_rate"]


@pytest.mark.parametrize("metric", [[math.nan] * 4, [0.1, 0.2, 0.3, math.inf], []])
def test_trainings_whose_metric_is_no_number_tell_nothing(metric):
    search = a_search()
    shown = train(search.next([]), 0)
    silent = dataclasses.replace(shown, number=1, metric=metric, state="paused")
    step = search.next([shown, silent, silent])
    assert step.reason == "to begin with" and math.isfinite(step.until_epochs)


def test_a_search_that_has_ended_says_what_one_more_training_would_bring(a_whole_search):
    step = a_search().forgone(a_whole_search)
    assert "is expected to lower the epochs with the chosen settings by" in step.reason
    fall = float(step.reason.split(" by ")[1].split("%")[0]) / 100
    cost = float(step.reason.split("for ")[1].split(" epochs")[0])
    best = min(each.epochs_to_target for each in a_whole_search if each.epochs_to_target)
    assert fall * WORTH < cost / best  # as much would be taken off so many trainings
    assert a_search().forgone([]) is None


def test_a_search_costs_no_more_than_a_few_trainings_at_full_scale(a_whole_search):
    assert sum(each.epochs[-1] for each in a_whole_search) < 8 * 10 * (1 + 1024 / 64)


def test_the_same_trainings_give_the_same_step_inside_the_bounds(a_whole_search):
    steps = [a_search().next(a_whole_search[:4]) for _ in range(2)]
    assert steps[0] == steps[1]
    assert 0.01 <= steps[0].settings["learning_rate"] <= 4.0
    assert steps[0].until_epochs > 0 and steps[0].reason


def test_a_training_in_flight_is_not_begun_again(a_whole_search):
    search, before = a_search(), a_whole_search[:4]
    first = search.next(before)
    flying = SeenTraining(4, first.global_batch_size, first.settings, 4, (), (), "running")
    again = search.next([*before, flying])
    assert (again.global_batch_size, again.settings) != (first.global_batch_size, first.settings)


def test_where_full_scale_may_not_be_trained_the_largest_rungs_are_each_to_its_end():
    seen = searched(a_search(rungs=(8, *LADDER)), most=60)
    assert len(LADDER) == DEPTH
    reached = {each.global_batch_size for each in seen if each.state == "reached"}
    assert reached == set(LADDER) == {each.global_batch_size for each in seen}


def test_where_the_target_is_too_far_at_full_scale_the_largest_rungs_are_searched():
    """At 1024 the best training takes 170 epochs, more than the 60 that it may; at the rungs 12.5 to 20."""
    search = a_search(most_epochs=60)
    seen = searched(search, most=60)
    at_full_scale = [each for each in seen if each.global_batch_size == 1024]
    spent = sum(each.epochs[-1] for each in at_full_scale)
    # two whole trainings' worth, and the rest of the training with which that was reached
    assert 2 * 60 <= spent <= 3 * 60
    assert seen[: len(at_full_scale)] == at_full_scale
    arrived = {each.global_batch_size for each in seen if each.state == "reached"}
    assert arrived == set(LADDER)
    assert search.next(seen) is None  # it has ended by itself
    asked = search.recommendation(seen)["learning_rate"]
    assert math.log(asked / (0.05 * math.sqrt(1024))) == pytest.approx(0.0, abs=0.8)


def test_the_last_trainings_that_are_left_come_to_their_end():
    search, seen = a_search(rungs=LADDER), []
    for left in range(9, 0, -1):
        seen.append(train(search.next(seen, left), len(seen)))
    assert {each.global_batch_size for each in seen if each.state == "reached"} == set(LADDER)


SPEC = StudySpec.from_dict(
    {
        "name": "study",
        "workload": "noisy_quadratic",
        "target": {"metric": "loss", "at_most": 0.1},
        "ladder": [16, 32, 64],
        "full_scale": {"global_batch_size": 1024},
        "budget": {"trials": 12, "epochs_per_trial": 60},
        "seeds": 2,
        "sampler": "forecast",
        "search": {
            "learning_rate": {"log_uniform": [0.01, 4.0], "role": "scaled"},
            "nesterov": {"choice": [True, False]},
            "normalization_batch_size": 1,
        },
    }
)


def finished(number, batch, settings, limit):
    seen = outcome(batch, settings.learning_rate)
    state, epochs = seen.state, seen.epochs
    if state != "diverged" and epochs > limit:
        state, epochs = "pruned", limit
    reached = epochs if state == "reached" else None
    trial = dataclasses.replace(
        a_trial(number, batch, TrialState(state), epochs=reached),
        epochs=epochs,
        settings=settings.to_dict(),
        resolution_epochs=0.25,
    )
    whole = np.arange(1, 11) / 10 * epochs
    points = [
        ConvergencePoint(
            step=at + 1,
            samples=at + 1,
            seconds=1.0,
            epochs=float(each),
            train_loss=1.0,
            loss=1.0,
            metric=1.0 - 0.9 * float(each) / seen.epochs,
            learning_rate=0.1,
            global_batch_size=batch,
        )
        for at, each in enumerate(whole)
    ]
    return trial, points


def test_a_sampler_rebuilt_from_the_trials_goes_on_as_the_first_would():
    first, trials = ForecastSampler(SPEC), []
    for number in range(9):
        batch, settings, ticket = first.suggest()
        limit = first.limit_epochs(batch, ticket)
        trial, points = finished(number, batch, settings, limit)
        trials.append((trial, points))
        first.tell(trial, ticket, lambda points=points: points)
    resumed = ForecastSampler(SPEC)
    for trial, points in trials:
        resumed.tell(trial, curve=lambda points=points: points)
    batch, settings, _ = resumed.suggest()
    expected_batch, expected, _ = first.suggest()
    assert batch == expected_batch
    assert settings.learning_rate == expected.learning_rate
    assert resumed.limit_epochs(64) == first.limit_epochs(64) <= 60
    assert not resumed.ended([])


def seen_so(number, rate, metric, *, batch=1024, state="paused", warmup=None, loss=()):
    """A training with an evaluation each epoch."""
    settings = {"learning_rate": rate} | ({} if warmup is None else {"warmup_epochs": warmup})
    epochs = [float(at + 1) for at in range(len(metric))]
    return SeenTraining(number, batch, settings, number, epochs, metric, state, None, loss)


def place_of(step):
    return math.log(step.settings["learning_rate"] / 0.01) / math.log(400)


@pytest.mark.parametrize(
    ("metric", "loss", "second"),
    [
        ([0.1, 0.3], (), 0.75),  # it learns: above it
        ([0.1, 0.1], (), 0.25),  # it has not begun: it may stand beyond the edge
        ([0.1, 0.1], (2.3, 2.0), 0.75),  # the metric stands still, but the loss falls
        ([0.1, 0.1], (2.3, 2.3), 0.25),
    ],
)
def test_the_second_training_goes_up_from_one_that_learns_and_down_from_one_that_does_not(
    metric, loss, second
):
    first = seen_so(0, 0.2, metric, loss=loss)
    assert place_of(a_search().next([first])) == pytest.approx(second)


def test_what_has_not_begun_to_learn_is_not_recommended():
    search = a_search()
    dead, learns = seen_so(0, 0.2, [0.1, 0.1]), seen_so(1, 0.045, [0.1, 0.2])
    assert search.recommendation([dead])["learning_rate"] == pytest.approx(0.2)  # nothing else
    assert search.recommendation([dead, learns])["learning_rate"] <= 0.045 * 1.01
    lower = [dead, seen_so(1, 0.045, [0.1, 0.1])]
    assert search.recommendation(lower)["learning_rate"] == pytest.approx(0.045)


def test_before_any_has_arrived_a_loss_counts_the_more_the_more_was_spent(monkeypatch):
    """Below the first spend it costs the first figure, above the second the second, and it only lowers the rate."""

    def rate(risks, looks):
        monkeypatch.setattr(generation_search, "EARLY_RISKS", risks)
        return a_search().recommendation(seen[:looks])["learning_rate"]

    seen = [
        seen_so(at, each, [0.02 * each * step for step in range(1, 13)])
        for at, each in enumerate((0.2, 1.1, 0.6, 1.4, 0.4, 0.9, 1.2, 0.8))
    ]
    spent = [
        a_search()._spent(seen[:looks], 1024) / a_search()._known(seen[:looks], 1024).epochs
        for looks in (2, 8)
    ]
    early, late = generation_search.SPENT
    monkeypatch.setattr(generation_search, "SPENT", (1.01 * spent[0], 0.99 * spent[1]))
    assert 0 < early < late and spent[0] < spent[1]
    assert rate((0.0, 9.0), 2) == rate((0.0, 0.0), 2) > rate((9.0, 9.0), 2)
    assert rate((0.0, 9.0), 8) == rate((9.0, 9.0), 8) < rate((0.0, 0.0), 8)


def test_a_higher_rate_that_has_not_begun_to_learn_is_lost_and_a_lower_one_only_late():
    search, flat = a_search(), [0.1] * 4
    learns = seen_so(0, 0.2, [0.1, 0.3, 0.4, 0.5])
    for rate, lost in ((0.8, True), (0.1, False)):
        _, told = search._told([learns, seen_so(1, rate, flat)])
        assert [each.ended for each in told] == [False, lost]
        assert (told[1].log_epochs >= LOST) == lost
    # one between two that learn is late
    _, told = search._told([learns, seen_so(1, 0.3, flat), seen_so(2, 0.5, [0.1, 0.2, 0.3, 0.4])])
    assert not told[1].ended


def test_at_a_batch_where_all_was_lost_lower_rates_are_tried():
    elsewhere = [seen_so(0, 2.0, [0.1, 0.3]), seen_so(1, 1.0, [0.1, 0.2])]
    lost = [
        seen_so(2 + at, rate, [0.0], batch=32, state="diverged")
        for at, rate in enumerate((1.5, 0.8))
    ]
    search = a_search(rungs=(16, 32))
    assert search._step([*elsewhere, *lost], 32).settings["learning_rate"] < 0.8


def test_a_look_within_the_warmup_has_seen_the_rate_that_it_has_come_to():
    """Half way up its warmup a training is at half of its rate: it tells of the edge what one of that rate tells."""
    shapes = ResponseShapes.between(math.log(0.01), math.log(4.0))
    rate, share = np.log([2.0]), np.array([0.2])
    whole = SettingPlaces(np.zeros((1, 2)), rate, np.array([0.4]), np.zeros(1))
    half = SettingPlaces(np.zeros((1, 2)), rate - math.log(2), np.array([0.4]), np.zeros(1))
    told = {
        "told": np.array([0.3]),
        "share": share,
        "own_error": own_error(share),
        "ended": np.zeros(1, bool),
    }
    ramped = EpochsSurface(shapes, 0.4, TrainingEstimates(whole, **told, ramp=np.log([0.5])))
    plain = EpochsSurface(shapes, 0.4, TrainingEstimates(half, **told, ramp=np.zeros(1)))
    np.testing.assert_allclose(ramped.weights, plain.weights)
    np.testing.assert_allclose(
        ramp_of(np.array([0.4, 0.1, 1e3]), 0.2), np.log([0.5, 1, LEAST_RAMP])
    )


def test_the_probability_to_be_lost_grows_from_0_to_1_across_the_edge():
    shapes = ResponseShapes(np.zeros(1), np.zeros(1), np.ones(1))
    rates = np.linspace(-3, 3, 50)
    lost = shapes.lost(rates, np.zeros(50))[0]
    assert lost[0] < 0.03 and lost[-1] > 0.97 and (np.diff(lost) >= 0).all()
    later = shapes.lost(rates, np.ones(50))[0]  # a long warmup moves the edge up
    assert (later <= lost).all() and (later < lost - 0.1).any()


def test_a_momentum_that_is_tuned_counts_with_the_rate():
    """1 / (1 - momentum) updates of the rate each: 0.1 at 0.9 counts as 0.05 at 0.95."""
    tuned = (*TUNED, ScaledSetting("momentum", "linear", 0.8, 0.99))
    search = SettingsSearch(LADDER, 1024, tuned, most_epochs=400, resolution=0.5, goal=0.9)
    given = [{"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": 0.05, "momentum": 0.95}]
    rates = search._places(given, [1024, 1024], 1024, 10.0).rates
    assert rates[0] == pytest.approx(rates[1])
    alone = a_search()._places([{"learning_rate": 0.1}], [1024], 1024, 10.0).rates
    assert alone[0] == pytest.approx(math.log(0.1))


def test_where_no_rate_is_tuned_the_other_settings_are_searched():
    tuned = (ScaledSetting("momentum", "linear", 0.0, 0.95),)
    search = SettingsSearch((1024,), 1024, tuned, most_epochs=60, resolution=0.5, goal=0.9)
    looked = [
        dataclasses.replace(
            seen_so(number, 0.1, metric), settings={"learning_rate": 0.1, "momentum": momentum}
        )
        for number, (momentum, metric) in enumerate([(0.5, [0.1, 0.3]), (0.8, [0.1, 0.4])])
    ]
    step = search.next(looked)
    assert set(step.settings) == {"momentum"} and 0 <= step.settings["momentum"] <= 0.95


def test_a_step_never_promises_more_epochs_than_a_training_may_take(a_whole_search):
    short = a_search(most_epochs=10, resolution=8.0)
    step = short.forgone(a_whole_search)
    assert float(step.reason.split(" for ")[1].split()[0]) <= 10


def failed_so(number, settings):
    return SeenTraining(number, 1024, settings, number, (), (), "failed")


def test_settings_with_which_a_training_failed_are_not_tried_again_and_again(a_whole_search):
    search, begun = a_search(), [seen_so(0, 0.2, [0.1, 0.3])]
    for number in range(1, 5):
        begun.append(failed_so(number, search.next(begun).settings))
    assert len({each.settings["learning_rate"] for each in begun}) == 5
    seen = list(a_whole_search[: BEGUN + 1])
    for _ in range(6):
        seen.append(failed_so(len(seen), search.next(seen).settings))
    rates = [each.settings["learning_rate"] for each in seen if each.state == "failed"]
    assert max(Counter(rates).values()) <= FAILURES


def test_a_failed_training_says_nothing_about_its_settings(a_whole_search):
    search = a_search()
    failed = failed_so(len(a_whole_search), {"learning_rate": 0.01})
    assert search.recommendation([*a_whole_search, failed]) == search.recommendation(a_whole_search)


def test_a_sampler_hears_of_a_trial_that_failed():
    sampler = ForecastSampler(SPEC)
    tried = []
    for number in range(3):
        batch, settings, ticket = sampler.suggest()
        tried.append(settings.learning_rate)
        trial, _ = finished(number, batch, settings, 1.0)
        failed = dataclasses.replace(
            trial, state=TrialState.FAILED, epochs=None, epochs_to_target=None
        )
        sampler.tell(failed, ticket)
    assert len(set(tried)) == 3


def test_past_trainings_without_a_curve_count_like_those_with_one(a_whole_search):
    arrived = [each for each in a_whole_search if each.state == "reached"]
    past = [dataclasses.replace(each, epochs=[each.epochs[-1]], metric=()) for each in arrived]
    search = a_search()
    assert search.next(past).reason != "to begin with"
    rates = [each.settings["learning_rate"] for each in arrived]
    assert search.recommendation(past)["learning_rate"] in rates
    # a slow look beside them stays slow, although there is no faster curve to compare it with
    quickest = min(each.epochs_to_target for each in arrived)
    epochs, metric = curve(10 * quickest, quickest)
    look = SeenTraining(99, 1024, {"learning_rate": 0.02}, 99, epochs, metric, "paused")
    rate = search.recommendation([*past, look])["learning_rate"]
    assert rate in rates
    limit = search.limit_epochs([*past, look], 1024)
    assert limit == pytest.approx(search.limit_epochs(past, 1024), rel=1e-9)
