"""The compared predictors: each takes a case and returns the median and the ends of an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from scipy.optimize import nnls

from benchmarks.throughput.families import GENERATIONS, Case, generation
from benchmarks.throughput.learn import ThroughputSeries, learn
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.throughput import Measurement, fit_throughput
from hpo.planning.throughput.priors import ThroughputPriors

Forecaster: TypeAlias = Callable[[Case], Interval]


def linear(case: Case) -> Interval:
    """Scale samples per second in proportion to accelerators, from the largest scale seen."""
    last = max(case.seen, key=lambda row: row.accelerators)
    median = last.samples_per_second * case.asked.accelerators / last.accelerators
    return Interval(median, median, median)


def least_squares(case: Case) -> Interval:
    """Fit a step time with non-negative terms b, 1 and log2 N by relative least squares, without priors."""
    rows = np.array([_terms(row) * row.samples_per_second for row in case.seen])
    coefficients, _ = nnls(rows, np.ones(len(rows)))
    median = float(1.0 / (coefficients @ _terms(case.asked)))
    return Interval(median, median, median)


def _terms(row: Measurement) -> np.ndarray:
    # seconds per sample
    return np.array(
        [
            1.0 / row.accelerators,
            1.0 / row.global_batch_size,
            np.log2(row.accelerators) / row.global_batch_size,
        ]
    )


def step_model(
    reference: Sequence[ThroughputSeries],
    left_out: Callable[[ThroughputSeries, ThroughputSeries], bool],
    *,
    nodes_known: bool = True,
    learnt: dict[tuple[str, ...], ThroughputPriors] | None = None,
) -> Forecaster:
    """Return the step model with priors learnt from the ``reference`` series that ``left_out(series, case's)`` spares.

    ``learnt`` caches priors by the names of these series, to be shared between forecasters of one ``reference``.
    """
    learnt = {} if learnt is None else learnt

    def forecast(case: Case) -> Interval:
        spared = [one for one in reference if not left_out(one, case.series)]
        key = tuple(one.name for one in spared)
        if key not in learnt:
            learnt[key] = learn(spared, rng=np.random.default_rng(0))
        seen = case.seen if nodes_known else [replace(row, nodes=None) for row in case.seen]
        model = fit_throughput(seen, priors=learnt[key])
        return model.at(case.asked.accelerators, case.asked.global_batch_size).samples_per_second

    return forecast


def year(series: ThroughputSeries) -> int:
    """Return the year of the first accelerator of the generation; for an unknown one, later than all."""
    return GENERATIONS.get(generation(series), 9999)


def forecasters(reference: Sequence[ThroughputSeries]) -> Mapping[str, Forecaster]:
    """Return all forecasters, by name."""
    learnt: dict[tuple[str, ...], ThroughputPriors] = {}

    def beliefs(
        left_out: Callable[[ThroughputSeries, ThroughputSeries], bool], *, nodes_known: bool = True
    ) -> Forecaster:
        return step_model(reference, left_out, nodes_known=nodes_known, learnt=learnt)

    return {
        "linear scaling": linear,
        "least squares": least_squares,
        "generation left out": beliefs(lambda one, asked: generation(one) == generation(asked)),
        "earlier generations only": beliefs(lambda one, asked: year(one) >= year(asked)),
        "later generations only": beliefs(lambda one, asked: year(one) <= year(asked)),
        "family left out": beliefs(lambda one, asked: one.name == asked.name),
        "round left out": beliefs(lambda one, asked: one.origin == asked.origin),
        "round left out, nodes not told": beliefs(
            lambda one, asked: one.origin == asked.origin, nodes_known=False
        ),
    }
