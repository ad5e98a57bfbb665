"""A log-linear factor model of samples per second, for a machine and a workload never measured together.

    log y = mu + sum_f effect_f(level) + sum_k slope_k log x_k + pair + noise

Every factor (machine, workload, architecture, precision, ...) has one effect per level, normal around 0 with the
factor's own spread. Levels with few rows therefore shrink towards the mean, and an unseen level widens the interval by
the spread. ``pair`` is the residual shared by rows with equal levels of all factors, as a machine may suit one workload
better than others. Numbers (accelerators, parameters, threads) enter as logarithms. Random effects with spreads chosen
by marginal likelihood follow Gelman and Hill 2007, chapters 12 and 13. The uncertainty of the spreads comes from
Laplace's method (MacKay 2003, chapter 27), with draws reweighted to the true posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.planning.throughput.forecast import OFFSETS

Array: TypeAlias = NDArray[np.float64]

MEAN_SD = 20.0  # prior standard deviation of the intercept: effectively flat in any unit
SLOPE_SD = 1.0  # throughput grows or falls with a number, but rarely faster than in proportion
EFFECT_SD, PAIR_SD, NOISE_SD = (
    0.7,
    0.15,
    0.05,
)  # prior medians of the spreads, in log samples per second
SPREAD_SD = 1.0  # standard deviation of these priors, in log spread
TRIED, DRAWS = 512, 64


@dataclass(frozen=True)
class FactorRow:
    """One measurement: a level for every factor, positive numbers, and the samples per second."""

    factors: Mapping[str, str]
    numbers: Mapping[str, float]
    samples_per_second: float


@dataclass(frozen=True)
class FactorModel:
    """The fitted model: draws of the log spreads, shape (draws, factors + 2), and ``weights`` = K^-1 (log y - mean)."""

    rows: Sequence[FactorRow]
    spreads: Array
    precisions: Array
    weights: Array
    level: float

    def at(
        self, factors: Mapping[str, str], numbers: Mapping[str, float] | None = None
    ) -> Interval:
        """Predict the samples per second, with a 90 % interval, of a new measurement with these levels and numbers.

        A level that was never measured is allowed, but widens the interval. Raises :class:`EvidenceError` unless the
        names of the factors and numbers match those in the rows.
        """
        asked = FactorRow(factors, numbers or {}, 1.0)
        _check_names(asked, self.rows[0], "asked")
        _check_numbers(asked, "asked")
        parts = _parts([asked], self.rows)
        own = _parts([asked], [asked])
        means, sds = [], []
        for spread, precision, weight in zip(
            np.exp(2.0 * self.spreads), self.precisions, self.weights, strict=True
        ):
            near = _combine(parts, spread)[0]
            variance = _combine(own, spread)[0, 0] + spread[-1] - near @ precision @ near
            means.append(self.level + near @ weight)
            sds.append(math.sqrt(max(variance, 0.0)))
        drawn = np.array(means)[:, None] + np.array(sds)[:, None] * OFFSETS
        return Interval(*(float(value) for value in np.exp(np.quantile(drawn, LEVELS))))


def fit_factors(
    rows: Sequence[FactorRow], *, rng: np.random.Generator | None = None
) -> FactorModel:
    """Fit the model to ``rows``, which all have the same factors and numbers.

    The result is deterministic unless ``rng`` is given.
    """
    if not rows:
        raise EvidenceError("a factor model needs at least one measured row")
    for position, row in enumerate(rows, start=1):
        _check_names(row, rows[0], f"row {position}")
        _check_numbers(row, f"row {position}")
    parts = _parts(rows, rows)
    logs = np.log([row.samples_per_second for row in rows])
    level = float(logs.mean())
    spreads = _spreads(parts, logs - level, rng or np.random.default_rng(0))
    precisions = np.stack(
        [np.linalg.inv(_covariance(parts, np.exp(2.0 * spread))) for spread in spreads]
    )
    return FactorModel(rows, spreads, precisions, precisions @ (logs - level), level)


def _spreads(parts: Array, gaps: Array, rng: np.random.Generator) -> Array:
    """Return draws, around the posterior mode, of the log spreads of all factors, the pairs and the noise."""
    from scipy.optimize import minimize

    factors = len(parts) - 2
    belief = np.log([EFFECT_SD] * factors + [PAIR_SD, NOISE_SD])

    def value(spread: Array) -> float:
        root = np.linalg.cholesky(_covariance(parts, np.exp(2.0 * spread)))
        white = np.linalg.solve(root, gaps)
        prior = ((spread - belief) ** 2).sum() / SPREAD_SD**2
        return float(0.5 * white @ white + np.log(np.diag(root)).sum() + 0.5 * prior)

    mode = np.asarray(
        minimize(
            value,
            belief,
            method="L-BFGS-B",
            bounds=[(one - 4 * SPREAD_SD, one + 4 * SPREAD_SD) for one in belief],
        ).x
    )
    precision, axes = np.linalg.eigh(_curvature(value, mode))
    root = axes / np.sqrt(np.maximum(precision, 1.0 / SPREAD_SD**2))  # never wider than the prior
    white = rng.standard_normal((TRIED, len(mode)))
    tried = mode + white @ root.T
    log_weight = 0.5 * (white**2).sum(axis=1) - np.array([value(one) for one in tried])
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(tried[rng.choice(TRIED, DRAWS, p=weight / weight.sum())])


def _curvature(value: Callable[[Array], float], at: Array, step: float = 0.05) -> Array:
    steps = step * np.eye(len(at))
    second = np.array(
        [
            [
                value(at + a + b) - value(at + a - b) - value(at - a + b) + value(at - a - b)
                for a in steps
            ]
            for b in steps
        ]
    )
    return np.asarray(second / (4.0 * step**2))


def _parts(here: Sequence[FactorRow], there: Sequence[FactorRow]) -> Array:
    """Return the terms of the covariance: shared levels of each factor, of all factors, and of the mean and slopes.

    The last term includes the variances of the mean and the slopes.
    """
    names = sorted(there[0].factors)
    same = [
        np.array([[float(a.factors[name] == b.factors[name]) for b in there] for a in here])
        for name in names
    ]
    pairs = np.prod(same, axis=0) if same else np.zeros((len(here), len(there)))
    numbers = sorted(there[0].numbers)
    logs = [
        np.log([[row.numbers[name] for name in numbers] for row in rows]).reshape(len(rows), -1)
        for rows in (here, there)
    ]
    return np.stack([*same, pairs, MEAN_SD**2 + SLOPE_SD**2 * logs[0] @ logs[1].T])


def _combine(parts: Array, variances: Array) -> Array:
    return np.asarray(np.tensordot(variances[:-1], parts[:-1], axes=1) + parts[-1])


def _covariance(parts: Array, variances: Array) -> Array:
    return np.asarray(_combine(parts, variances) + variances[-1] * np.eye(parts.shape[1]))


def _check_names(row: FactorRow, first: FactorRow, where: str) -> None:
    for kind in ("factors", "numbers"):
        got, wanted = sorted(getattr(row, kind)), sorted(getattr(first, kind))
        if got != wanted:
            raise EvidenceError(
                f"{where}: the {kind} must be {', '.join(wanted) or 'none'}, like those of the first "
                f"row, but got {', '.join(got) or 'none'}"
            )


def _check_numbers(row: FactorRow, where: str) -> None:
    for name, value in [*row.numbers.items(), ("samples_per_second", row.samples_per_second)]:
        if not (math.isfinite(value) and value > 0):
            raise EvidenceError(
                f"{where}: {name} must be a finite number above 0, but got {value!r}"
            )
