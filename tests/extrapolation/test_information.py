"""The information of trainings: exact in the linear normal case, monotone, and close to that of real fits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from hpo.extrapolation.forecast import band_at_sizes, setting_band_at_sizes
from hpo.extrapolation.inference.information import TrainingInformation, training_information
from hpo.extrapolation.inference.posterior import Posterior, fit
from hpo.extrapolation.inference.trials import WITNESSES
from trainers.job import Question, Target

FULL = {"width": 256.0, "training_samples": 32768.0}
QUESTION = Question(Target.best("loss", higher_is_better=False), 8.0)
WIDTHS, LENGTHS, BATCHES = (32, 64), (4096, 16384), (16, 32, 64)
RUNGS = [
    (batch, {"width": width, "training_samples": length})
    for width, length, batch in itertools.product(WIDTHS, LENGTHS, BATCHES)
]


def best_rate(batch: int, width: int) -> float:
    return 0.024 * (1 + 400 / batch) ** -0.7 * (width / 256) ** -0.8


def loss(batch: int, width: int, length: int, rate: float) -> float:
    floor = 1.2 + 0.4 * (width / 256) ** -0.5 + 0.4 * (length / 32768) ** -0.3
    crit = 200 * (length / 32768) ** 0.45
    miss = np.log(rate / best_rate(batch, width))
    cost = np.hypot(0.7, min(miss, 0)) - 0.7 + max(miss, 0) ** 2 / 1.2
    return float(floor * (1 + batch / crit) ** 0.3 * np.exp(0.3 * cost))


def evidence(trainings: int, seed: int) -> Evidence:
    """So many trainings at each rung, with rates spread about the best."""
    rng, fresh = np.random.default_rng(seed), itertools.count()
    seen = []
    for (batch, sizes), _ in itertools.product(RUNGS, range(trainings)):
        width, length = (int(each) for each in sizes.values())
        rate = best_rate(batch, width) * np.exp(rng.uniform(-1, 1))
        lacked = loss(batch, width, length, rate) * np.exp(0.015 * rng.standard_normal())
        settings = {"learning_rate": rate, "optimizer": "sgd", **sizes}
        seen.append(TrainingObservation(batch, "reached", lacked, settings, next(fresh)))
    rates = ScaledSetting("learning_rate", "log", 1e-3, 0.3)
    return Evidence(tuple(seen), (), 4096.0, (rates,), QUESTION, FULL)


def fitted(trainings: int, seed: int = 0) -> Posterior:
    return fit(evidence(trainings, seed), rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return fitted(4)


@pytest.fixture(scope="module")
def told(posterior: Posterior) -> TrainingInformation:
    return training_information(posterior, 128, RUNGS)


def test_a_normal_mean_is_known_as_the_textbook_has_it():
    """n trainings of variance s^2 of an unknown of variance 1 leave 1 / (1 + n / s^2)."""
    variance, runs = 0.25, 0.01
    one = TrainingInformation(
        np.ones((1, 1, 1)),
        np.full((1, 1, 1, 1), 1 / variance),
        np.ones((1, 1)),
        [(np.ones((1, 1)), np.array([2.0]))],
        np.array([runs]),
    )
    for trainings in (0, 1, 5, 40):
        witnesses = trainings / (1 + trainings / WITNESSES)
        left = 1 / (1 + witnesses / variance)
        assert one.spread([trainings]) == pytest.approx(np.sqrt(left + runs))
        assert one.regret([trainings]) == pytest.approx(min(0.5 * 2.0 * left, np.log(3)))


def test_two_rungs_that_tell_of_a_line_tell_its_far_end_as_least_squares_do():
    """y = a + b x seen at x = 0 and 1, forecast at x = 3, with normal priors of a and b: the ridge's covariance."""
    slopes, variance, prior = np.array([[1.0, 0.0], [1.0, 1.0]]), 0.04, np.diag([1.0, 4.0])
    told = np.einsum("ri,rj->rij", slopes, slopes)[None] / variance
    far = np.array([[1.0, 3.0]])
    line = TrainingInformation(prior[None], told, far, [], np.zeros(1))
    for counts in ([1, 1], [4, 1], [1, 9]):
        many = np.array(counts) / (1 + np.array(counts) / WITNESSES)
        covariance = np.linalg.inv(prior + slopes.T @ np.diag(many / variance) @ slopes)
        assert line.spread(counts) == pytest.approx(float(np.sqrt(far @ covariance @ far.T)[0, 0]))


@pytest.mark.fit
def test_more_trainings_never_widen_and_each_buys_less(told: TrainingInformation):
    rng = np.random.default_rng(0)
    for _ in range(30):
        counts = rng.integers(0, 8, len(RUNGS)).astype(float)
        more = counts + rng.integers(0, 3, len(RUNGS))
        assert told.spread(more) <= told.spread(counts) + 1e-12
        assert told.regret(more) <= told.regret(counts) + 1e-12
    curve = [told.spread([each] * len(RUNGS)) ** 2 for each in (1, 2, 3, 4, 5, 6)]
    assert (np.diff(curve) < 0).all() and (np.diff(curve, 2) > 0).all()


@pytest.mark.fit
def test_what_is_nearer_the_full_scale_tells_more(told: TrainingInformation):
    def at(width: int, length: int) -> float:
        sizes = {"width": width, "training_samples": length}
        return told.spread([3.0 if rung[1] == sizes else 0.5 for rung in RUNGS])

    assert at(64, 16384) < at(32, 4096)


@pytest.mark.fit
def test_settings_missed_by_more_are_expected_to_cost_more(told: TrainingInformation):
    counts = [4.0] * len(RUNGS)
    twice = told.scaled(counts, 2 * told.regret(counts))
    # some particles reach the largest regret that counts
    assert 1.5 < twice.regret(counts) / told.regret(counts) <= 2.0
    assert twice.spread(counts) == told.spread(counts)


@pytest.mark.fit
def test_counts_must_be_of_all_rungs(told: TrainingInformation):
    with pytest.raises(EvidenceError, match=f"each of {len(RUNGS)} rungs, but got"):
        told.spread([1.0])
    with pytest.raises(EvidenceError, match="0 or more"):
        told.spread([-1.0] * len(RUNGS))


def test_means_of_tuned_rows_tell_nothing_of_single_trainings():
    rows = tuple(
        AggregateRow(batch, 10.0, 8, None, {"learning_rate": 0.1}) for batch in (16, 64, 256)
    )
    rates = ScaledSetting("learning_rate", "log", 1e-3, 0.3)
    fit_of_rows = fit(Evidence((), rows, None, (rates,)), rng=np.random.default_rng(0))
    with pytest.raises(EvidenceError, match="give one row per run"):
        training_information(fit_of_rows, 512, [(16, {})])


@pytest.mark.slow
def test_what_is_told_of_twice_the_trainings_is_what_a_fit_to_them_comes_to():
    """Predicted from two trainings a rung, and from four, beside fits to four and to two; three sweeps."""

    def spread(posterior: Posterior) -> float:
        mean, sd = posterior.log_epochs(float(np.log(128)))
        return float(np.sqrt(mean.var() + (sd**2).mean()))

    ratios = []
    for seed in range(3):
        fits = {each: fitted(each, seed) for each in (2, 4)}
        for known, asked in ((2, 4), (4, 2)):
            predicted = training_information(fits[known], 128, RUNGS).spread([asked] * len(RUNGS))
            ratios.append(predicted / spread(fits[asked]))
    assert 0.7 < np.exp(np.mean(np.log(ratios))) < 1.4
    assert max(ratios) < 2.2 and min(ratios) > 0.45


@pytest.mark.fit
def test_the_law_at_a_size_is_near_what_was_trained_there(posterior: Posterior):
    for width, length in itertools.product(WIDTHS, LENGTHS):
        sizes = {"width": float(width), "training_samples": float(length)}
        band = band_at_sizes(posterior, BATCHES, sizes)
        rates = setting_band_at_sizes(posterior, "learning_rate", BATCHES, sizes)
        for index, batch in enumerate(BATCHES):
            truth = loss(batch, width, length, best_rate(batch, width))
            assert band.low[index] * 0.98 < truth < band.high[index] * 1.02
            assert 0.4 < rates.median[index] / best_rate(batch, width) < 2.5
    with pytest.raises(EvidenceError, match="training_samples is missing"):
        band_at_sizes(posterior, BATCHES, {"width": 32.0})
