"""The forecast of a constrained figure at a batch, against known laws and an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.extrapolation.inference.kept import (
    PRIOR_PRECISION,
    PRIOR_RUNS,
    RELATIVE_ERROR,
    fit_constraints,
)
from storage.records import Trial, TrialState
from trainers.job import Constraint, Question, Target

RATE = ScaledSetting("learning_rate", "log", 0.01, 1.0)
BATCHES = (16, 32, 64, 128)


def a_trial(batch: int, rate: float = 0.1, **told: Any) -> Trial:
    known: dict[str, Any] = {
        "id": 1,
        "study_id": 1,
        "number": 0,
        "state": TrialState.REACHED,
        "global_batch_size": batch,
        "seed": 0,
        "settings": {"learning_rate": rate},
        "purpose": "sweep",
        "reason": "",
        "started_at": None,
        "finished_at": None,
        "epochs_to_target": 3.0,
        "epochs": 3.0,
    }
    return Trial(**{**known, **told})


def asked(constraint: Constraint) -> Question:
    return Question(Target("top1", 0.9), constraints=(constraint,))


def test_memory_grows_by_what_a_sample_takes() -> None:
    """1.2 GB and 5 MB a sample, so that 1,000 samples take 6.2 GB."""
    trials = [a_trial(b, memory_bytes=round(1.2e9 + 5e6 * b)) for b in BATCHES for _ in range(3)]
    for bound, kept in ((6.5, True), (5.9, False)):
        kept_by = fit_constraints(trials, asked(Constraint("memory_gb", bound)), [RATE])
        (told,) = kept_by.outlooks(math.log(1000), {"learning_rate": 0.1})
        assert told.expected.median == pytest.approx(6.2, rel=0.01)
        assert told.expected.low < 6.2 < told.expected.high
        assert told.likely is kept
        assert told.trainings == 12


def test_the_seconds_of_a_sample_fall_by_what_an_update_costs() -> None:
    """A millisecond a sample and 16 ms an update."""
    trials = [
        a_trial(b, seconds=1000 * (0.001 + 0.016 / b), samples=1000) for b in BATCHES for _ in "ab"
    ]
    held = fit_constraints(trials, asked(Constraint("seconds_per_sample", 0.0011)), [])
    (told,) = held.outlooks(math.log(1024), {})
    assert told.expected.median == pytest.approx(0.001 + 0.016 / 1024, rel=0.02)
    assert told.likely


def test_nine_of_ten_intervals_hold_what_a_further_training_tells() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        rates = np.exp(rng.uniform(np.log(0.01), 0.0, 24))
        batches = rng.choice(BATCHES, 24)

        def truth(batch: float, rate: float) -> float:
            return 0.8 - 0.02 * math.log(batch) - 0.01 * math.log(rate / 0.1) ** 2

        trials = [
            a_trial(int(b), float(r), measures={"top5": truth(b, r) + 0.02 * rng.standard_normal()})
            for b, r in zip(batches, rates, strict=True)
        ]
        held = fit_constraints(trials, asked(Constraint("top5", 0.7, at_most=False)), [RATE])
        (told,) = held.outlooks(math.log(256), {"learning_rate": 0.2})
        seen = truth(256, 0.2) + 0.02 * rng.standard_normal()
        inside += told.expected.low <= seen <= told.expected.high
    assert 0.85 <= inside / 300 <= 0.95


def test_it_is_the_regression_of_the_textbook() -> None:
    """By least squares over the trainings and the prior's own rows, and SciPy's Student distribution."""
    rng = np.random.default_rng(1)
    rates = np.exp(rng.uniform(np.log(0.01), 0.0, 15))
    batches = rng.choice(BATCHES, 15)
    values = 0.5 + 0.1 * np.log(rates) + 0.05 * rng.standard_normal(15)
    trials = [
        a_trial(int(b), float(r), measures={"loss": float(v)})
        for b, r, v in zip(batches, rates, values, strict=True)
    ]
    constraint = Constraint("loss", 0.4)
    (told,) = fit_constraints(trials, asked(constraint), [RATE]).outlooks(
        math.log(256), {"learning_rate": 0.3}
    )

    def row(batch: Any, rate: Any) -> Any:
        x = np.log(rate) - math.log(0.1)
        return np.stack([np.log(batch), x, x**2], axis=-1)

    raw = row(batches, rates)
    centre, spread = raw.mean(axis=0), raw.std(axis=0)
    rows = np.column_stack([np.ones(15), (raw - centre) / spread])
    prior = np.diag(np.sqrt([1e-9, *[PRIOR_PRECISION] * 3]))
    mean, *_ = np.linalg.lstsq(
        np.vstack([rows, prior]), np.concatenate([values, np.zeros(4)]), rcond=None
    )
    left = np.sum((values - rows @ mean) ** 2) + np.sum((prior @ mean) ** 2)
    least = (RELATIVE_ERROR * np.abs(values).max()) ** 2
    inverse = np.linalg.inv(rows.T @ rows + prior**2)
    freedom = 15 - np.trace(rows @ inverse @ rows.T) + PRIOR_RUNS
    variance = max((PRIOR_RUNS * least + left) / freedom, least)
    at = np.concatenate([[1.0], (row(256.0, 0.3) - centre) / spread])
    scale = math.sqrt(variance * (1 + at @ np.linalg.solve(rows.T @ rows + prior**2, at)))
    expected = stats.t(freedom, loc=at @ mean, scale=scale)
    assert told.expected.median == pytest.approx(expected.median(), rel=1e-6)
    assert told.expected.high == pytest.approx(expected.ppf(0.95), rel=1e-6)
    assert told.chance == pytest.approx(expected.cdf(0.4), rel=1e-6)


def test_settings_tell_a_metric_apart_and_nothing_mends_a_memory() -> None:
    trials = [
        a_trial(
            b,
            rate,
            memory_bytes=round(1e9 + 1e7 * b),
            measures={"top5": 0.9 - 0.1 * math.log(rate / 0.01)},
        )
        for b in BATCHES
        for rate in (0.01, 0.03, 0.1, 0.3)
    ]
    rates = {"learning_rate": np.array([0.01, 0.1, 0.5])}
    held = fit_constraints(trials, asked(Constraint("top5", 0.7, at_most=False)), [RATE])
    chances = held.chance(math.log(128), rates)
    assert chances[0] > 0.95 and chances[2] < 0.05
    assert held.mendable(math.log(128), rates)[0] == 0.0
    memory = fit_constraints(trials, asked(Constraint("memory_gb", 2.0)), [RATE])
    assert memory.chance(math.log(1024), rates) == pytest.approx(0.0, abs=1e-6)
    assert memory.mendable(math.log(1024), rates) == pytest.approx(0.0)


def test_what_nobody_told_is_left_out_and_one_training_tells_little() -> None:
    assert not fit_constraints([a_trial(16)], asked(Constraint("top5", 0.5)), [RATE]).fits
    (told,) = fit_constraints(
        [a_trial(16, measures={"top5": 0.5})], asked(Constraint("top5", 0.5)), [RATE]
    ).outlooks(math.log(16), {"learning_rate": 0.1})
    assert told.expected.low < 0.5 < told.expected.high
