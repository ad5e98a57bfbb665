"""The best within a fixed budget: known laws are recovered, and a metric stays in its range."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.evidence.stored import study_evidence
from hpo.extrapolation.forecast import Forecast, epochs_band, forecast
from hpo.extrapolation.inference.model import censor_stuck_trainings, make_posterior_models
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.fixed_budget import log_shortening
from hpo.extrapolation.laws.laws import log_growth
from hpo.extrapolation.laws.priors import LawPriors
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from storage.records import Trial, TrialState
from trainers.job import LEAST_SHORTFALL, Question, Target

SHARE = Question(Target.best("top1", higher_is_better=True), 30.0)
LOSS = Question(Target.best("loss", higher_is_better=False), 30.0)
RATES = ScaledSetting("learning_rate", "log", 0.01, 3.0)
LEAST, GAIN, CRITICAL, BEST_AT_64, SEED_SD = 0.25, 0.4, 600.0, 0.2, 0.01


def log_need(batch: float, rate: float, gain: float = GAIN) -> float:
    """The law written out: E = 1 + B / B_crit epochs for one, a bowl in the log rate, best as B / (B + N)."""
    best = math.log(BEST_AT_64) + math.log((batch / (batch + 400)) / (64 / (64 + 400)))
    miss = math.log(rate) - best
    slower = 0.5 * miss**2 if miss > 0 else math.sqrt(0.36 + miss**2) - 0.6
    return math.log(LEAST) + gain * (math.log1p(batch / CRITICAL) + slower)


def sweep(
    question: Question, seed: int, *, batches: tuple[int, ...] = (64, 128, 256, 512), each: int = 9
) -> Evidence:
    rng = np.random.default_rng(seed)
    seen = []
    for batch in batches:
        for number in range(each):
            rate = float(np.exp(rng.uniform(math.log(0.03), math.log(1.5))))
            need = math.exp(log_need(batch, rate) + SEED_SD * rng.standard_normal())
            seen.append(
                TrainingObservation(
                    batch, "reached", need, {"learning_rate": rate}, seed=number + batch
                )
            )
    return Evidence(seen, tuned=(RATES,), question=question)


def best_there(batch: int) -> float:
    return min(log_need(batch, rate) for rate in np.geomspace(0.01, 3, 400))


def told(question: Question, seed: int, batch: int) -> Forecast:
    return forecast(fit(sweep(question, seed), rng=np.random.default_rng(0)), batch)


@pytest.mark.slow
@pytest.mark.parametrize("question", [SHARE, LOSS])
def test_the_best_at_four_times_the_ladder_lies_within_its_interval(question: Question) -> None:
    held = 0
    for seed in range(6):
        found = told(question, seed, 2048)
        assert found.best is not None
        truth, ends = question.told(math.exp(best_there(2048))), found.best.interval
        held += ends.low <= truth <= ends.high
        assert abs(math.log(ends.median / truth)) < 0.12
        at = math.log(found.settings["learning_rate"].median)
        assert log_need(2048, math.exp(at)) - best_there(2048) < 0.05  # of the log of what it lacks
    assert held >= 5


def test_a_forecast_of_the_best_says_so_and_stays_between_nothing_and_all() -> None:
    found = told(SHARE, 1, 1024)
    plain = found.to_dict()
    assert plain["epochs_to_target"] is None
    assert plain["best"]["metric"] == "top1" and plain["best"]["within"] == {"epochs": 30.0}
    assert 0 < plain["best"]["low"] < plain["best"]["median"] < plain["best"]["high"] < 1
    assert plain["chance_of_reaching"] == []
    assert found.epochs_to_target.low == found.epochs_to_target.high == 30
    assert found.critical_batch is not None
    assert "shortfall_factor" in plain["sensitivity"]["learning_rate"][0]
    assert "reached the target" not in found.reason


@pytest.mark.slow
def test_a_loss_and_the_share_with_the_same_shortfall_are_forecast_alike() -> None:
    share, loss = told(SHARE, 2, 1024), told(LOSS, 2, 1024)
    assert share.best is not None and loss.best is not None
    # the same numbers went in: what one lacks at its low end is what the other has at its high end
    assert SHARE.told(loss.best.interval.low) == pytest.approx(share.best.interval.high)
    assert SHARE.told(loss.best.interval.median) == pytest.approx(share.best.interval.median)
    assert share.settings == loss.settings
    assert share.trust == loss.trust


def test_a_band_is_in_the_unit_of_the_metric() -> None:
    posterior = fit(sweep(SHARE, 3), rng=np.random.default_rng(0))
    band = epochs_band(posterior, [128, 1024])
    found = forecast(posterior, 1024).best
    assert found is not None
    assert band.median[1] == pytest.approx(found.interval.median)
    assert (band.low < band.median).all() and (band.median < band.high).all()


def test_trainings_that_got_nowhere_are_told_apart_and_the_good_ones_are_not() -> None:
    good = [TrainingObservation(64, "reached", 0.3 * 1.1**step, {}) for step in range(8)]
    stuck = [TrainingObservation(64, "reached", 900.0, {}) for _ in range(4)]
    found = censor_stuck_trainings([*good, *stuck])
    assert [item.state for item in found] == ["reached"] * 8 + ["censored"] * 4
    assert max(item.epochs for item in found) < 30  # they lack more than half-way, in logarithms
    assert found[:8] == good


@pytest.mark.slow
def test_trainings_that_got_nowhere_do_not_pull_the_forecast_to_them() -> None:
    clean = sweep(SHARE, 4)
    stuck = [
        TrainingObservation(batch, "reached", 999.0, {"learning_rate": rate}, seed=batch + place)
        for batch in (64, 128, 256, 512)
        for place, rate in enumerate((2.2, 2.5, 3.0))
    ]
    both = dataclasses.replace(clean, observations=[*clean.observations, *stuck])
    found = forecast(fit(both, rng=np.random.default_rng(0)), 1024).best
    assert found is not None
    assert found.interval.median == pytest.approx(SHARE.told(math.exp(best_there(1024))), abs=0.05)


def test_a_run_at_a_large_batch_is_as_good_as_one_of_fewer_samples() -> None:
    """n = N / (1 + B / B_crit(n)) with B_crit(n) = B_crit (n / N)^c, by bisection."""
    sharpness, exponent, power = 1.3, 0.9, np.array([0.0, 0.4, 0.7])
    batches = np.log([0.01, 0.5, 8.0, 2000.0])

    def grown(at: np.ndarray) -> np.ndarray:
        return log_growth(at, 0.0, sharpness, exponent)

    found = log_shortening(grown, batches, power)
    low, high = np.zeros((3, 4)), np.full((3, 4), 60.0)
    for _ in range(60):
        middle = (low + high) / 2
        more = grown(batches + power[:, None] * middle) > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    np.testing.assert_allclose(found, low, atol=1e-6)
    np.testing.assert_allclose(found[0], grown(batches), atol=1e-12)  # B_crit constant
    assert (found[:, 0] < 0.01).all()  # far below the critical batch nothing is lost
    assert (np.diff(found, axis=0)[:, 1:] > 0).all()  # the critical batch falls with n


def test_far_above_the_critical_batch_only_the_updates_count() -> None:
    power = np.array([0.5])
    batches = np.log([4e3, 8e3, 16e3])  # over B_crit at the longest run
    lengths = np.log([0.25, 0.5, 1.0])  # of the longest run: the same updates at each batch
    seen = batches - power * lengths  # over B_crit(N)
    found = log_shortening(lambda at: log_growth(at, 0.0), seen, power)
    np.testing.assert_allclose(np.diff(lengths - found[0]), 0.0, atol=2e-3)
    fewer = log_shortening(lambda at: log_growth(at, 0.0), seen + math.log(2), power)
    # n ~ updates^(1 / (1 - c))
    np.testing.assert_allclose(fewer - found, math.log(4), rtol=2e-3)


def test_epochs_to_a_target_know_no_exponent() -> None:
    model = make_posterior_models(dataclasses.replace(sweep(SHARE, 0), question=None), LawPriors())[
        0
    ]
    fixed = make_posterior_models(sweep(SHARE, 0), LawPriors())[0]
    assert "log_gain" not in [each.name for each in model.layout.parameters]
    assert "log_gain" in [each.name for each in fixed.layout.parameters]


def test_evidence_has_a_question_of_a_fixed_budget_or_none() -> None:
    with pytest.raises(EvidenceError, match="must ask for the best within a fixed budget"):
        dataclasses.replace(sweep(SHARE, 0), question=Question(Target("top1", 0.9)))


def trial(number: int, state: TrialState, best: float | None, rate: float = 0.1) -> Trial:
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        state=state,
        global_batch_size=64,
        seed=number,
        settings=TrainingSettings(learning_rate=rate).to_dict(),
        purpose="sweep",
        epochs_to_target=None,
        epochs=30.0 if state is TrialState.CENSORED else 8.0,
        steps=100,
        seconds=1.0,
        best_metric=best,
        final_metric=best,
        reason="",
        resolution_epochs=0.1,
        started_at=None,
        finished_at=None,
    )


def test_what_trials_of_a_study_say() -> None:
    space = SearchSpace.parse({"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}})
    trials = [
        trial(0, TrialState.CENSORED, 0.8),
        trial(1, TrialState.CENSORED, 0.9),
        trial(2, TrialState.PRUNED, 0.5),
        trial(3, TrialState.DIVERGED, None),
        trial(4, TrialState.FAILED, None),
    ]
    found = study_evidence(trials, space, question=SHARE).observations
    assert [item.state for item in found] == ["reached", "reached", "pruned", "diverged"]
    assert found[0].epochs == pytest.approx(0.25) and found[1].epochs == pytest.approx(1 / 9)
    assert found[2].epochs == pytest.approx(
        1 / 9
    )  # behind the best of its batch, nobody knows how far
    assert study_evidence(trials, space, question=SHARE).question == SHARE


def test_a_stopped_trial_says_nothing_where_none_came_to_the_end() -> None:
    space = SearchSpace.parse({"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}})
    trials = [trial(0, TrialState.PRUNED, 0.5), trial(1, TrialState.DIVERGED, None)]
    found = study_evidence(trials, space, question=SHARE).observations
    assert [item.state for item in found] == ["diverged"]


def test_a_small_loss_is_its_own_shortfall_and_only_a_perfect_metric_is_not():
    assert LOSS.shortfall(7e-6) == 7e-6
    assert SHARE.shortfall(1 - 2e-6) == pytest.approx(2e-6, rel=1e-4)
    assert LOSS.shortfall(0.0) == LEAST_SHORTFALL
    assert SHARE.shortfall(1.0) == pytest.approx(LEAST_SHORTFALL, rel=1e-3)
    assert LOSS.shortfall(-1e-9) is None and SHARE.shortfall(1 + 1e-9) is None


def test_a_loss_may_have_any_unit():
    evidence, unit = sweep(LOSS, 0, batches=(64, 128), each=5), 1e-7
    small = dataclasses.replace(
        evidence,
        observations=[
            dataclasses.replace(each, epochs=unit * each.epochs) for each in evidence.observations
        ],
    )
    found = [
        forecast(fit(each, rng=np.random.default_rng(0)), 128).best for each in (evidence, small)
    ]
    assert found[0] is not None and found[1] is not None
    assert found[1].interval.median / unit == pytest.approx(found[0].interval.median, rel=1e-6)
