"""The scored forecasters: three least-squares baselines and the joint model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from scipy.optimize import least_squares

from benchmarks.extrapolation.learn import Series, learn
from benchmarks.extrapolation.protocol import Forecaster
from hpo.extrapolation.evidence.evidence import AggregateRow, Evidence
from hpo.extrapolation.evidence.table import tuned_settings
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.priors import LawPriors

Triples: TypeAlias = list[tuple[float, float, float]]
# name of a scored series -> names of the series excluded from learning its priors
LeftOut: TypeAlias = Callable[[str], Iterable[str]]

JOINT = "joint model"


def _arrays(rows: Sequence[AggregateRow]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([row.global_batch_size for row in rows], dtype=float),
        np.array([row.epochs_to_target for row in rows]),
    )


def _points(values: np.ndarray) -> Triples:
    return [(float(value), float(value), float(value)) for value in values]


def hyperbola(_: str, rows: Sequence[AggregateRow], batches: Sequence[int]) -> Triples:
    """E = E_min (1 + B / B_crit), least squares of the relative error."""
    batch, epochs = _arrays(rows)

    def miss(log: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(log[0]) * (1 + batch / np.exp(log[1])) / epochs - 1)

    starts = [(np.log(epochs.min()), np.log(batch[-1] * factor)) for factor in (0.1, 1, 10)]
    best = min(
        (least_squares(miss, start) for start in starts), key=lambda fitted: float(fitted.cost)
    ).x
    return _points(np.exp(best[0]) * (1 + np.asarray(batches) / np.exp(best[1])))


def power_law(_: str, rows: Sequence[AggregateRow], batches: Sequence[int]) -> Triples:
    """E = c B^p, least squares in logarithms."""
    batch, epochs = _arrays(rows)
    line = np.polyfit(np.log(batch), np.log(epochs), 1)
    return _points(np.exp(np.polyval(line, np.log(batches))))


def constant(_: str, rows: Sequence[AggregateRow], batches: Sequence[int]) -> Triples:
    """E = mean of the observed epochs."""
    return _points(np.full(len(batches), _arrays(rows)[1].mean()))


class JointModel:
    """The joint model with priors learned from ``teachers``, except those that ``left_out`` names for a series."""

    def __init__(
        self, teachers: Sequence[Series], left_out: LeftOut, *, settings: bool = True, seed: int = 0
    ) -> None:
        self._teachers, self._left_out, self._settings, self._seed = (
            teachers,
            left_out,
            settings,
            seed,
        )
        self._priors: dict[frozenset[str], LawPriors] = {}

    def __call__(self, name: str, rows: Sequence[AggregateRow], batches: Sequence[int]) -> Triples:
        """Return predictions from the rows of the series ``name``."""
        evidence = Evidence(aggregates=rows, tuned=tuned_settings(rows) if self._settings else ())
        posterior = fit(evidence, rng=np.random.default_rng(self._seed), priors=self._learned(name))
        found = [forecast(posterior, batch).epochs_to_target for batch in batches]
        return [(one.median, one.low, one.high) for one in found]

    def _learned(self, name: str) -> LawPriors:
        left_out = frozenset(self._left_out(name))
        if left_out not in self._priors:
            rest = [one for one in self._teachers if one.name not in left_out]
            self._priors[left_out] = learn(rest, rng=np.random.default_rng(self._seed))
        return self._priors[left_out]


def forecasters(
    teachers: Sequence[Series], left_out: LeftOut = lambda name: (name,)
) -> dict[str, Forecaster]:
    """Return all forecasters by their name in the table."""
    return {
        JOINT: JointModel(teachers, left_out),
        f"{JOINT}, settings unseen": JointModel(teachers, left_out, settings=False),
        "hyperbola": hyperbola,
        "power law": power_law,
        "constant": constant,
    }
