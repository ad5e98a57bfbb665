"""After a race: one lucky run does not win, lost settings are never used, and successes lower the risk."""

import dataclasses
from statistics import NormalDist

import numpy as np
import pytest
from ladders import Truth, sweep

from hpo.extrapolation.evidence.evidence import TrainingObservation
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit, thin_posterior
from hpo.extrapolation.inference.trials import make_trials
from hpo.extrapolation.raced import BELOW_A_LOSS, RISK_COUNTS, settings_after_race
from hpo.extrapolation.recommend import recommend

pytestmark = pytest.mark.fit

BATCH = 512


@pytest.fixture(scope="module")
def posterior():
    return thin_posterior(
        fit(sweep(Truth(), np.random.default_rng(3), settings=6), rng=np.random.default_rng(0)), 500
    )


@pytest.fixture(scope="module")
def held(posterior):
    return recommend(posterior, float(np.log(BATCH)))


def training(held, factor, epochs, state="reached", longer=1.0, seed=0):
    settings = {
        "learning_rate": held["learning_rate"].interval.median * factor,
        "warmup_epochs": held.warmup_epochs * longer,
    }
    return TrainingObservation(BATCH, state, epochs, settings, seed)


def used(posterior, held, *trainings):
    choices, told = settings_after_race(posterior, held, BATCH, trainings)
    return (
        choices["learning_rate"].interval.median / held["learning_rate"].interval.median,
        choices,
        told,
    )


def expected(posterior):
    return float(np.exp(np.median(posterior.log_epochs(float(np.log(BATCH)))[0])))


def test_without_a_race_nothing_changes(posterior, held):
    assert settings_after_race(posterior, held, BATCH, ()) == (held, None)


def test_the_better_of_two_wins_by_many_runs_but_not_by_one_that_is_hardly_better(posterior, held):
    epochs = expected(posterior)
    many = [
        training(held, factor, took * epochs, seed=seed)
        for factor, took in ((1.0, 1.0), (0.6, 0.6))
        for seed in range(4)
    ]
    assert used(posterior, held, *many)[0] == pytest.approx(0.6)
    lucky = [training(held, 1.0, epochs), training(held, 0.5, 0.98 * epochs)]
    assert used(posterior, held, *lucky)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("longer", [1.0, 2.0])
def test_what_was_lost_and_what_lies_beyond_it_is_never_used(posterior, held, longer):
    epochs = expected(posterior)
    trainings = [
        training(held, 0.9, 1.0, "diverged", longer),
        training(held, 1.0, 0.4 * epochs, seed=1),
        training(held, 0.5, 1.3 * epochs, longer=2.5, seed=2),
    ]
    factor, choices, told = used(posterior, held, *trainings)
    assert (
        factor <= BELOW_A_LOSS * 0.9
        or choices.warmup_epochs >= longer * held.warmup_epochs / BELOW_A_LOSS
    )
    assert factor <= 1.0
    assert (told.configurations, told.trainings, told.reached, told.lost) == (3, 3, 2, 1)


def test_a_training_that_was_dropped_was_slow_unless_the_laws_hold_it_lost(posterior, held):
    epochs = expected(posterior)
    slow = [training(held, 1.0, epochs, seed=1), training(held, 0.5, 1.3 * epochs, "pruned")]
    assert used(posterior, held, *slow)[0] > 0.8
    stuck = [training(held, 1.0, 1.3 * epochs, "pruned"), training(held, 0.5, 0.9 * epochs)]
    assert used(posterior, held, *stuck)[0] < 0.8
    risks = []
    for factor in (1.0, 3.0):
        dropped = [training(held, factor, epochs, "pruned"), training(held, 0.5, epochs, seed=1)]
        choices, _ = settings_after_race(posterior, held, BATCH, dropped)
        risks.append(float(choices.risk(posterior).mean()))
    assert max(risks) < 0.05


@pytest.mark.parametrize("factor", [0.2, 0.3, 0.4])
def test_a_training_that_was_dropped_where_the_laws_hold_it_slow_changes_nothing(
    posterior, held, factor
):
    epochs = expected(posterior)
    stood = [training(held, 1.0, epochs, seed=seed) for seed in (1, 2)]
    dropped = training(held, factor, 1.4 * epochs, "pruned", seed=1)
    _, without, _ = used(posterior, held, *stood)
    _, choices, _ = used(posterior, held, *stood, dropped)
    assert choices.chosen == without.chosen == held.chosen
    assert choices.log_shift == pytest.approx(without.log_shift, abs=1e-9)


def test_nothing_bolder_is_used_than_what_was_recommended_or_reached_the_target(posterior, held):
    epochs = expected(posterior)
    low = [training(held, factor, 2 * epochs * (1.3 - factor)) for factor in (0.5, 0.7, 1.0)]
    assert used(posterior, held, *low)[0] <= 1.0
    high = [*low, training(held, 1.6, 0.3 * epochs), training(held, 1.6, 0.3 * epochs, seed=1)]
    assert 1.0 < used(posterior, held, *high)[0] <= 1.6 + 1e-9


def test_one_training_alone_does_not_make_bolder_settings_safe(posterior, held):
    epochs = expected(posterior)
    once = [training(held, 1.0, epochs), training(held, 1.6, 0.3 * epochs)]
    assert used(posterior, held, *once)[0] <= 1.0


@pytest.mark.parametrize("factor", (0.25, pytest.param(1.0, marks=pytest.mark.slow)))
def test_the_epochs_of_many_trainings_are_those_told_after_them_whatever_the_laws_held(
    posterior, held, factor
):
    took = 0.6 * expected(posterior)
    trainings = [
        *(training(held, 1.0, 2 * took, seed=100 + seed) for seed in range(4)),
        *(training(held, factor, took, seed=100 + seed) for seed in range(40)),
    ][-40 if factor == 1.0 else 0 :]
    knows = _with_race(posterior.evidence, trainings)
    found, choices, _ = used(knows, held, *trainings)
    assert found == pytest.approx(factor, rel=0.2)
    told = knows.log_epochs(float(np.log(BATCH)))[0] + choices.cost(knows)
    assert float(told.mean()) == pytest.approx(np.log(took), abs=0.15)


def test_what_a_seed_adds_to_all_trainings_decides_nothing(posterior, held):
    """Two configurations, the better one with the slow seed alone: paired by seed it is the better one."""
    epochs = expected(posterior)
    paired = [
        training(held, factor, epochs * quick * slow, seed=seed)
        for factor, quick in ((1.0, 1.0), (0.7, 0.8))
        for seed, slow in ((0, 0.7), (1, 1.3))
    ]
    assert used(posterior, held, *paired)[0] < 0.9


def test_where_all_was_lost_a_lower_rate_with_a_longer_warmup_is_used(posterior, held):
    trainings = [training(held, factor, 1.0, "diverged", 2.0) for factor in (0.4, 1.0)]
    factor, choices, _ = used(posterior, held, *trainings)
    assert factor < 0.4
    assert choices.warmup_epochs >= 2 * held.warmup_epochs


def test_the_risk_falls_by_the_runs_that_stood_there_or_beyond(posterior, held):
    epochs, off = expected(posterior), np.exp([-0.35, 0.0, 0.35])
    # the laws may be off: their risk at the rate counts four times that at both ends
    before = float(
        np.average([held.risk(posterior, each).mean() for each in off], weights=[1, 4, 1])
    )
    for runs in (1, 2, 4):
        trainings = [training(held, 1.0, epochs, seed=seed) for seed in range(runs)]
        after = float(used(posterior, held, *trainings)[1].risk(posterior).mean())
        assert after == pytest.approx(before * RISK_COUNTS / (RISK_COUNTS + runs))
    bolder = [training(held, 1.5, 2 * epochs), training(held, 1.5, 2 * epochs, seed=1)]
    factor, choices, _ = used(posterior, held, *bolder)
    assert factor == pytest.approx(1.0)
    assert float(choices.risk(posterior).mean()) == pytest.approx(before / 2)


def test_slow_trainings_of_one_seed_speak_less_against_a_law_than_those_of_many():
    """Six trainings that took e^0.3 times what the law has: the likelihood of the law over that of one that is right.

    What the shared seed adds is integrated over its normal distribution, as the sampler does.
    """
    nodes = np.array([NormalDist().inv_cdf((node + 0.5) / 999) for node in range(999)])
    against = []
    for seeds in (1, 6):
        race = [
            TrainingObservation(512, "reached", 9 * np.exp(0.3), {}, number % seeds)
            for number in range(6)
        ]
        trials = make_trials(race, [], None)
        values = {
            "log_trial_scatter": np.full(len(nodes), np.log(0.1)),
            "log_recipe_scatter": np.full(len(nodes), -3.0),
            "log_seed_ratio": np.zeros(len(nodes)),
            "rungs": np.zeros(len(nodes)),
            "seeds": nodes[:, None],
        }
        slow, right = (
            np.log(
                np.exp(trials.log_likelihood(values, mean, [], None, None, np.ones((1, 1)))).mean()
            )
            for mean in (np.full((len(nodes), 1), np.log(9.0) + each) for each in (0.0, 0.3))
        )
        against.append(float(right - slow))
    assert 0 < against[0] < against[1] / 2


def _with_race(evidence, race):
    raced = dataclasses.replace(evidence, observations=(*evidence.observations, *race))
    return fit(raced, rng=np.random.default_rng(0))


def test_only_seeds_that_trials_at_one_batch_share_are_unknowns():
    race = [
        TrainingObservation(512, "reached", 9.0, {}, seed)
        for seed in (100, 100, 101, 101, 100, 102)
    ]
    others = [TrainingObservation(64, "reached", 5.0, {}, seed) for seed in (7, 8, 100)]
    untold = [
        TrainingObservation(512, "reached", 9.0, {}),
        TrainingObservation(512, "reached", 9.0, {}),
    ]
    trials = make_trials([*race, *others, *untold], [], None)
    assert trials.seed.tolist() == [0, 0, 1, 1, 0, -1, -1, -1, -1, -1, -1]
    values = {
        "log_trial_scatter": np.log([0.1, 0.2]),
        "log_seed_ratio": np.log([1.0, 3.0]),
        "seeds": np.array([[1.0, -1.0], [0.5, 2.0]]),
    }
    added = trials.of_seeds(values)
    assert added[0] == pytest.approx([0.1, 0.1, -0.1, -0.1, 0.1, *[0.0] * 6])
    assert added[1] == pytest.approx([0.3, 0.3, 1.2, 1.2, 0.3, *[0.0] * 6])


def test_differences_between_raced_settings_are_told_and_not_their_level(posterior, held):
    """All slow alike adds nothing to the laws' epochs; one twice as quick as the rest is told as quicker."""
    epochs = expected(posterior)
    alike = [
        training(held, factor, 3 * epochs, seed=seed) for factor in (0.7, 1.0) for seed in (0, 1)
    ]
    assert abs(used(posterior, held, *alike)[1].log_shift) < 0.1
    quicker = [
        training(held, factor, took * epochs, seed=seed)
        for factor, took in ((0.6, 1.5), (1.0, 3.0), (1.4, 3.0))
        for seed in (0, 1)
    ]
    factor, choices, _ = used(posterior, held, *quicker)
    assert factor < 0.75 and choices.log_shift < -0.2


def test_where_all_were_dropped_and_none_diverged_the_recommended_rate_is_not_given_up(
    posterior, held
):
    """A seed with which all are slow, and a budget that ends soon: nothing says that the settings are lost."""
    limit = 2.2 * expected(posterior)
    dropped = [
        training(held, factor, limit, "pruned", longer)
        for factor, longer in ((1.0, 1.0), (0.5, 3.0), (2.0, 0.4))
    ]
    factor, _, told = used(posterior, held, *dropped)
    assert 0.6 < factor <= 1.0
    assert told.reached == told.lost == 0 and told.trainings == 3
    lost = [dataclasses.replace(each, state="diverged") for each in dropped]
    assert used(posterior, held, *lost)[0] == pytest.approx(0.5 * BELOW_A_LOSS)


@pytest.mark.slow
def test_the_forecast_says_that_there_was_a_race_and_is_trusted_more_for_it():
    truth, rng = Truth(), np.random.default_rng(5)
    evidence = sweep(truth, rng, settings=6)
    before = forecast(fit(evidence, rng=np.random.default_rng(0)), 2048)
    rate, warmup = before.settings["learning_rate"].median, before.settings["warmup_epochs"].median
    race = [
        dataclasses.replace(truth, budget_epochs=500.0).trial(
            2048, factor * rate, warmup, seed, rng
        )
        for factor, seeds in ((1.0, 2), (0.7, 2), (1.3, 1))
        for seed in range(seeds)
    ]
    raced = dataclasses.replace(evidence, observations=(*evidence.observations, *race))
    after = forecast(fit(raced, rng=np.random.default_rng(0)), 2048, race=race)
    assert "raced at 2048: 3 configurations, 5 trainings" in after.reason
    assert "times the largest rung" not in after.reason.partition("Doubts:")[2]
    levels = ["low", "medium", "high"]
    assert levels.index(after.trust) >= levels.index(before.trust)
    old, new = before.epochs_to_target, after.epochs_to_target
    assert new.high / new.low < old.high / old.low
    assert new.low < truth.epochs(2048) < new.high
