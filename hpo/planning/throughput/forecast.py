"""Forecasts of samples per second: fit once, then evaluate at any number of accelerators and global batch size.

A forecast mixes two models of the same rows, a step time that is a sum of terms and linear scaling, each weighted by
its marginal likelihood (Hoeting et al. 1999, Bayesian model averaging). Non-negative least squares in the terms 1, N
and log N is a special case of the step model with a vague prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.planning.machines import Machine
from hpo.planning.throughput import linear
from hpo.planning.throughput.posterior import StepPosterior, fit_steps
from hpo.planning.throughput.priors import PRIORS, ThroughputPriors
from hpo.planning.throughput.rows import MeasuredThroughput, merge_measurements
from hpo.planning.throughput.step_model import Limit
from hpo.planning.throughput.trust import Trust, judge_throughput

MOST = 10**15
"""The largest number of accelerators and batch size with a forecast."""

NOTABLE = 0.1  # computation is the limit if everything else takes less than this share of the step


def _quantiles(count: int) -> np.ndarray:
    return np.array([NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)])


OFFSETS, LINEAR_OFFSETS = _quantiles(20), _quantiles(200)


@dataclass(frozen=True)
class ThroughputForecast:
    """Samples per second of a new configuration, with its 90 % predictive interval, and what limits it.

    ``limited_by`` is the largest term of the step beyond ideal computation, or "compute" if all these terms together
    take less than a tenth of the step. ``trust`` is high, medium or low; ``reason`` explains it in words.
    """

    accelerators: int
    global_batch_size: int
    samples_per_second: Interval
    limited_by: Limit
    trust: Trust
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as a JSON-compatible dictionary, as printed by ``hpo throughput``."""
        return {
            "accelerators": self.accelerators,
            "global_batch_size": self.global_batch_size,
            "samples_per_second": self.samples_per_second.to_dict(),
            "limited_by": self.limited_by,
            "trust": self.trust,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class ThroughputModel:
    """The step model and linear scaling, both fitted to the same rows.

    ``linear_weight`` is the probability of linear scaling given the rows.
    """

    posterior: StepPosterior
    beliefs: ThroughputPriors
    linear_weight: float

    def at(self, accelerators: int, global_batch_size: int) -> ThroughputForecast:
        """Return the forecast for one configuration; raise :class:`EvidenceError` unless both are from 1 to
        :data:`MOST`.
        """
        for name, value in (
            ("accelerators", accelerators),
            ("global_batch_size", global_batch_size),
        ):
            if not 1 <= value <= MOST:
                shown = "more" if value > MOST else f"{value!r}"
                raise EvidenceError(
                    f"{name} must be 1 or more, and at most {MOST:g}, but got {shown}"
                )
        interval = self._interval(accelerators, global_batch_size)
        limit = self._limit(accelerators, global_batch_size)
        trust, reason = judge_throughput(
            self.posterior, accelerators, global_batch_size, interval, limit
        )
        return ThroughputForecast(accelerators, global_batch_size, interval, limit, trust, reason)

    def _interval(self, accelerators: int, global_batch_size: int) -> Interval:
        mean, sd = self.posterior.log_throughput(accelerators, global_batch_size)
        steps = (mean[:, None] + sd[:, None] * OFFSETS).ravel()
        middle, spread = linear.log_throughput(
            self.posterior.rows, self.beliefs.walk, accelerators, global_batch_size
        )
        values = np.append(steps, middle + spread * LINEAR_OFFSETS)
        weights = np.append(
            np.full(len(steps), (1.0 - self.linear_weight) / len(steps)),
            np.full(len(LINEAR_OFFSETS), self.linear_weight / len(LINEAR_OFFSETS)),
        )
        order = np.argsort(values)
        at = np.cumsum(weights[order]) - 0.5 * weights[order]
        return Interval(*(float(value) for value in np.exp(np.interp(LEVELS, at, values[order]))))

    def _limit(self, accelerators: int, global_batch_size: int) -> Limit:
        terms = self.posterior.terms(accelerators, global_batch_size)
        if np.median((terms.network + terms.control + terms.input) / terms.total) < NOTABLE:
            return "compute"
        shares = {
            name: float(np.median(term / terms.total)) for name, term in terms.departures().items()
        }
        return max(shares, key=lambda name: shares[name])


def fit_throughput(
    rows: Sequence[MeasuredThroughput],
    machine: Machine | None = None,
    *,
    priors: ThroughputPriors = PRIORS,
    rng: np.random.Generator | None = None,
) -> ThroughputModel:
    """Fit the model to measured ``rows`` of one workload on one kind of accelerator.

    ``machine`` gives the accelerators per node if the rows do not. The fit is deterministic unless ``rng`` is given.
    Raises :class:`EvidenceError` if there are no rows or if a row has invalid figures.
    """
    node_size = None if machine is None else float(machine.accelerators_per_node)
    steps = fit_steps(
        merge_measurements(rows), node_size, priors.step, rng or np.random.default_rng(0)
    )
    share = priors.linear_share
    ratio = math.exp(min(linear.log_evidence(steps.rows, priors.walk) - steps.log_evidence, 50.0))
    return ThroughputModel(steps, priors, share * ratio / (1.0 - share + share * ratio))
