"""Simulated series with a known truth, drawn far more widely than the model's priors and partly contradicting its law.

Each series has its own draw of the law of the epochs (mostly the generalised hyperbola, sometimes a power law or a
sharp corner, which the model does not know), the ladder, the scatter of recipes and of single runs, the number of runs
that a row averages, whether it includes their spread, the evaluation interval, the unit, and a tuned learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.extrapolation.learn import Series
from hpo.extrapolation.evidence.evidence import AggregateRow
from hpo.extrapolation.laws.laws import log_growth

Array = NDArray[np.float64]

LAWS = {"hyperbola": 0.7, "power law": 0.15, "corner": 0.15}
RUNGS = (4, 9)
MIN_EPOCHS, UNITS = (0.5, 100.0), (1.0, 1.0, 1e6)  # epochs, or samples of a data set of a million
FIRST_BATCH, STEP = (8.0, 8192.0), (1.3, 3.0)
CRITICAL_OVER_FIRST, SHARPNESS, EXPONENT, POWER = (1.0, 200.0), (0.6, 4.0), (0.5, 1.2), (0.05, 0.6)
RECIPE_SCATTER, SEED_SCATTER, RUNS = (0.01, 0.12), (0.01, 0.2), (1, 3, 5, 10, 20)
COARSENESS = (0.01, 0.08)  # evaluation interval as a share of the fewest epochs
MAX_RATE, NOISE_OVER_CRITICAL, RATE_EXPONENT, RATE_SCATTER = (
    (1e-3, 30.0),
    (0.1, 10.0),
    (0.5, 1.0),
    (0.05, 0.5),
)


def simulate(count: int, seed: int = 0) -> list[Series]:
    """Return ``count`` series, each drawn from ``seed`` and its own number."""
    return [_series(f"{number}", np.random.default_rng([seed, number])) for number in range(count)]


def _series(name: str, rng: np.random.Generator) -> Series:
    law = str(rng.choice(list(LAWS), p=list(LAWS.values())))
    first = _log_uniform(rng, FIRST_BATCH)
    steps = [_log_uniform(rng, STEP) for _ in range(rng.integers(*RUNGS, endpoint=True) - 1)]
    batches = np.unique(np.round(first * np.cumprod([1.0, *steps])))
    critical = first * _log_uniform(rng, CRITICAL_OVER_FIRST)
    minimum = _log_uniform(rng, MIN_EPOCHS) * rng.choice(UNITS)
    expected = (
        minimum
        * _growth(law, batches, critical, rng)
        * _scatter(rng, _log_uniform(rng, RECIPE_SCATTER), len(batches))
    )
    rates = _rates(batches, critical, rng) if rng.random() < 0.5 else None
    seeds, runs = _log_uniform(rng, SEED_SCATTER), int(rng.choice(RUNS))
    every = minimum * _log_uniform(rng, COARSENESS) if rng.random() < 0.5 else 0.0
    sd_known = runs > 1 and rng.random() < 0.75
    rows = [
        _row(
            int(batch),
            _coarse(mean * _scatter(rng, seeds, runs), every),
            sd_known=sd_known,
            rate=None if rates is None else float(rates[index]),
        )
        for index, (batch, mean) in enumerate(zip(batches, expected, strict=True))
    ]
    return Series(f"{law} {name}", rows)


def _growth(law: str, batches: Array, critical: float, rng: np.random.Generator) -> Array:
    if law == "power law":
        return np.asarray((batches / batches[0]) ** rng.uniform(*POWER))
    if law == "corner":
        return np.asarray(np.maximum(1.0, batches / critical))
    shape = _log_uniform(rng, SHARPNESS), rng.uniform(*EXPONENT)
    return np.exp(log_growth(np.log(batches), np.log(critical), *shape))


def _rates(batches: Array, critical: float, rng: np.random.Generator) -> Array:
    noise = critical * _log_uniform(rng, NOISE_OVER_CRITICAL)
    # a power of the batch far below the noise scale, then flat: arXiv:1812.06162, equation 2.6
    largest = _log_uniform(rng, MAX_RATE)
    best = largest * (1 + noise / batches) ** -rng.uniform(*RATE_EXPONENT)
    return np.asarray(best * _scatter(rng, _log_uniform(rng, RATE_SCATTER), len(batches)))


def _row(batch: int, epochs: Array, *, sd_known: bool, rate: float | None) -> AggregateRow:
    return AggregateRow(
        batch,
        float(epochs.mean()),
        len(epochs),
        float(epochs.std(ddof=1)) if sd_known else None,
        {} if rate is None else {"learning_rate": rate},
    )


def _coarse(epochs: Array, every: float) -> Array:
    return np.asarray(np.ceil(epochs / every) * every) if every else epochs


def _log_uniform(rng: np.random.Generator, ends: Sequence[float]) -> float:
    return float(np.exp(rng.uniform(*np.log(ends))))


def _scatter(rng: np.random.Generator, spread: float, count: int) -> Array:
    return np.asarray(np.exp(spread * rng.standard_normal(count)))
