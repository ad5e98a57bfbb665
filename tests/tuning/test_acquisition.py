"""The acquisition: gains against a model whose answer is known, learning curves with a known crossing, resumption."""

import dataclasses
import math

import numpy as np
import pytest
from test_agenda import a_trial

from hpo.extrapolation.evidence.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.inference.posterior import fit, thinned
from hpo.study.spec import StudySpec
from hpo.tuning.acquisition import gain, prediction
from hpo.tuning.acquisition.chooser import Acquisition
from hpo.tuning.acquisition.curves import hopeless, predict_crossing
from hpo.tuning.agenda import Choose, Done, Repeat, Wait, next_choice
from hpo.tuning.forecast_sampler import ForecastSampler
from search_spaces.settings import TrainingSettings
from storage.records import TrialState

TUNED = (ScaledSetting("learning_rate", "log", 0.01, 4.0),)
LADDER = (16, 32, 64)


def outcome(batch, rate):
    """10 (1 + B / 64) epochs at the best rate 0.05 sqrt(B), more by the square of the miss; diverges above 2."""
    if rate > 2:
        return Observation(batch, "diverged", 0.25, {"learning_rate": rate})
    epochs = 10 * (1 + batch / 64) * math.exp(0.3 * math.log(rate / (0.05 * math.sqrt(batch))) ** 2)
    state = "reached" if epochs < 60 else "censored"
    return Observation(batch, state, min(epochs, 60), {"learning_rate": rate})


def an_acquisition(seed=0):
    acquisition = Acquisition(LADDER, 1024, TUNED, resolution=0.25, seed=seed)
    for rate in (0.05, 0.2, 0.8, 3.0):
        acquisition.tell(outcome(16, rate))
    return acquisition


def two_beliefs(risk=0.001):
    """Two particles that differ in what they expect of the first of two trials, and of the best settings."""
    return prediction.Prediction(
        np.array([[0.0, 0.0], [1.0, 0.0]]),
        np.full((2, 2), 0.1),
        np.full((2, 2), risk),
        np.ones((2, 1)),
    )


EVEN, DISAGREE = np.array([0.5, 0.5]), np.array([[0.0, 1.0], [1.0, 0.0]])


def test_a_trial_that_tells_the_beliefs_apart_leaves_nothing_and_one_that_does_not_leaves_all():
    after = gain.expected_uncertainty(two_beliefs(), EVEN, DISAGREE, 9.0, np.random.default_rng(0))
    assert gain.uncertainty(EVEN, DISAGREE) == pytest.approx(0.5)
    assert after[0] < 0.05
    assert after[1] == pytest.approx(0.5, abs=0.02)


def test_a_trial_stopped_before_either_belief_expects_the_target_tells_nothing():
    after = gain.expected_uncertainty(two_beliefs(), EVEN, DISAGREE, -3.0, np.random.default_rng(0))
    assert after[0] == pytest.approx(0.5, abs=0.02)


def test_a_limit_between_the_beliefs_tells_them_apart_for_fewer_epochs():
    limit = 0.5
    after = gain.expected_uncertainty(
        two_beliefs(), EVEN, DISAGREE, limit, np.random.default_rng(0)
    )
    assert after[0] < 0.1
    cut = gain.expected_epochs(two_beliefs(), EVEN, limit, 0.1)
    whole = gain.expected_epochs(two_beliefs(), EVEN, 9.0, 0.1)
    assert whole[0] == pytest.approx((1 + math.e) / 2, rel=0.01)
    assert cut[0] == pytest.approx((1 + math.exp(0.5)) / 2, rel=0.01)


def test_pairs_that_agree_on_the_settings_and_the_epochs_are_not_uncertain():
    loss = np.array([[1.0, 1.0, 1.5], [1.0, 1.0, 1.5], [1.3, 1.3, 1.0]])
    regret = gain.pairwise_regret(loss, np.zeros(3))
    assert regret[0, 1] == 0
    assert regret[0, 2] == pytest.approx((0.5 + 0.3) / 2)
    assert (np.diagonal(regret) == 0).all()


def test_predicted_epochs_are_those_of_the_posterior_own_likelihood():
    evidence = Evidence(
        observations=[outcome(b, r) for b in LADDER for r in (0.1, 0.3, 1.0)], tuned=TUNED
    )
    posterior = thinned(fit(evidence, rng=np.random.default_rng(0)), 200)
    extra = outcome(32, 0.5)
    told = prediction.log_likelihood(posterior, extra)
    trials = dataclasses.replace(posterior.model.trials)
    with_extra = fit(
        Evidence(observations=[*evidence.observations, extra], tuned=TUNED),
        rng=np.random.default_rng(0),
    ).model.trials
    mean = posterior.model.mean(posterior.values, trials.rung_log_batch)
    # the posterior coarsens the likelihood of n trials by 1 + n / 50, and that of divergence by 1 + n / 250
    one = with_extra.log_likelihood(posterior.values, mean, posterior.model.laws, None) * (
        1 + 10 / 50
    )
    other = trials.log_likelihood(posterior.values, mean, posterior.model.laws, None) * (1 + 9 / 50)
    assert np.corrcoef(one - other, told)[0, 1] > 0.98


def test_the_particles_own_best_settings_cost_least():
    evidence = Evidence(
        observations=[outcome(b, r) for b in LADDER for r in (0.1, 0.3, 1.0, 3.0)], tuned=TUNED
    )
    posterior = thinned(fit(evidence, rng=np.random.default_rng(0)), 50)
    cost, _ = prediction.miss(posterior, 256, prediction.best_settings(posterior, 256))
    assert (np.diagonal(cost) <= cost.min(axis=1) + 1e-9).all()


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
    assert hopeless(epochs, flat, 0.1, 30)
    assert not hopeless(epochs[:8], flat[:8], 0.1, 30)  # too early to tell
    falling = [at**-1.0 for at in epochs]
    assert not hopeless(epochs, falling, 0.1, 12)  # crosses at epoch 10


@pytest.mark.parametrize("metric", [[math.nan] * 20, [1.0] * 20, [0.5]])
def test_curves_that_tell_nothing_predict_nothing(metric):
    assert predict_crossing(np.arange(1, len(metric) + 1), metric, 0.1) is None


def test_the_same_trials_give_the_same_choice_inside_the_bounds():
    choices = [an_acquisition().choose({"optimizer": "sgd"}) for _ in range(2)]
    assert choices[0] == choices[1]
    assert choices[0].global_batch_size in LADDER
    assert 0.01 <= choices[0].settings["learning_rate"] <= 4.0
    assert choices[0].gain > 0 and choices[0].limit_epochs > 0


def test_a_trial_in_flight_is_not_chosen_again_for_nothing():
    acquisition = an_acquisition()
    first = acquisition.choose()
    again = acquisition.choose(running=[(first.global_batch_size, first.settings)])
    assert again.uncertainty != first.uncertainty
    assert again.settings != first.settings


def test_choices_narrow_down_the_rate_at_the_target():
    acquisition = an_acquisition()
    before = acquisition.choose().uncertainty
    for _ in range(7):
        choice = acquisition.choose()
        acquisition.tell(outcome(choice.global_batch_size, choice.settings["learning_rate"]))
    assert acquisition.choose().uncertainty < before
    posterior, weights = acquisition.belief()
    rates = [each["learning_rate"] for each in prediction.best_settings(posterior, 1024)]
    assert 0.3 < weights @ np.array(rates) < 3


@pytest.mark.parametrize("state", ["censored", "diverged"])
def test_without_a_trial_that_reached_its_target_there_is_nothing_to_choose_by(state):
    acquisition = Acquisition(LADDER, 1024, TUNED, resolution=0.25)
    for rate in (0.1, 0.2, 0.4, 0.8):
        acquisition.tell(Observation(16, state, 10, {"learning_rate": rate}))
    assert not acquisition.ready
    assert acquisition.limit_epochs(16) is None


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


def finished(number, batch, settings):
    seen = outcome(batch, settings.learning_rate)
    reached = seen.epochs if seen.state == "reached" else None
    return dataclasses.replace(
        a_trial(number, batch, TrialState(seen.state), epochs=reached),
        epochs=seen.epochs,
        settings=settings.to_dict(),
        resolution_epochs=0.25,
    )


def test_a_sampler_rebuilt_from_the_trials_goes_on_as_the_first_would():
    first, trials = ForecastSampler(SPEC), []
    for number in range(9):
        batch, settings, ticket = first.suggest()
        trials.append(finished(number, batch, settings))
        first.tell(trials[-1], ticket)
    assert {trial.global_batch_size for trial in trials[:3]} == {16}
    resumed = ForecastSampler(SPEC)
    for trial in trials:
        resumed.tell(trial)
    batch, settings, _ = resumed.suggest()
    expected_batch, expected, _ = first.suggest()
    assert batch == expected_batch
    assert settings.learning_rate == expected.learning_rate
    assert resumed.limit_epochs(64) == first.limit_epochs(64) <= 60


def test_where_the_smallest_rung_never_reaches_its_target_the_next_is_tried():
    sampler = ForecastSampler(SPEC)
    for number in range(3):
        batch, settings, ticket = sampler.suggest()
        trial = dataclasses.replace(
            a_trial(number, batch, TrialState.CENSORED), epochs=60, settings=settings.to_dict()
        )
        sampler.tell(trial, ticket)
    assert sampler.suggest()[0] == 32


def test_the_acquisition_has_its_way_before_the_best_are_repeated_and_no_more_than_the_budget_is_spent():
    trials = [
        a_trial(n, 16 * 2 ** (n % 2), TrialState.REACHED, learning_rate=0.1 + n, epochs=5 + n)
        for n in range(8)
    ]
    assert next_choice(12, 2, trials) == Choose()
    trials.append(a_trial(8, 16, TrialState.RUNNING, learning_rate=9.0))
    assert next_choice(12, 2, trials) == Wait()
    trials[-1] = a_trial(8, 16, TrialState.CENSORED, learning_rate=9.0)
    asked = []
    for number in (9, 10, 11):
        task = next_choice(12, 2, trials)
        assert isinstance(task, Repeat)
        asked.append((task.global_batch_size, task.settings["learning_rate"]))
        trials.append(
            dataclasses.replace(
                a_trial(number, task.global_batch_size, TrialState.REACHED, seed=1, epochs=5),
                settings=TrainingSettings(learning_rate=asked[-1][1]).to_dict(),
            )
        )
    assert asked == [(32, 1.1), (16, 0.1), (32, 3.1)]
    assert next_choice(12, 2, trials) == Done()
