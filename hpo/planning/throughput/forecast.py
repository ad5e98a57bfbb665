"""Forecasts of samples per second: fit once, ask at any number of accelerators and any global batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from hpo.errors import EvidenceError
from hpo.intervals import LEVELS, Interval
from hpo.planning.machines import Machine
from hpo.planning.throughput.posterior import StepPosterior, fit_steps
from hpo.planning.throughput.priors import PRIORS, StepPriors
from hpo.planning.throughput.rows import MeasuredThroughput, merged
from hpo.planning.throughput.step_model import Limit

NOTABLE = 0.1       # less than a tenth of the step for all but computation: computation is what limits
OFFSETS = np.array([NormalDist().inv_cdf((index + 0.5) / 20) for index in range(20)])


@dataclass(frozen=True)
class ThroughputForecast:
    """Samples per second of a new configuration, with its 90 % predictive interval, and what limits it.

    ``limited_by`` is the largest term of the step beyond ideal computation; "compute" where all others together make
    less than a tenth of the step.
    """

    accelerators: int
    global_batch_size: int
    samples_per_second: Interval
    limited_by: Limit

    def to_dict(self) -> dict[str, Any]:
        """The forecast as plain values for JSON, as ``hpo throughput`` prints it."""
        return {"accelerators": self.accelerators, "global_batch_size": self.global_batch_size,
                "samples_per_second": self.samples_per_second.to_dict(), "limited_by": self.limited_by}


@dataclass(frozen=True)
class ThroughputModel:
    """A fitted step model."""

    posterior: StepPosterior

    def at(self, accelerators: int, global_batch_size: int) -> ThroughputForecast:
        """The forecast for one configuration; :class:`EvidenceError` unless both are 1 or more."""
        for name, value in (("accelerators", accelerators), ("global_batch_size", global_batch_size)):
            if not (math.isfinite(value) and value >= 1):
                raise EvidenceError(f"{name} must be 1 or more, but got {value!r}")
        mean, sd = self.posterior.log_throughput(accelerators, global_batch_size)
        spread = (mean[:, None] + sd[:, None] * OFFSETS).ravel()
        interval = Interval(*(float(value) for value in np.exp(np.quantile(spread, LEVELS))))
        return ThroughputForecast(accelerators, global_batch_size, interval,
                                  self._limit(accelerators, global_batch_size))

    def _limit(self, accelerators: int, global_batch_size: int) -> Limit:
        terms = self.posterior.terms(accelerators, global_batch_size)
        if np.median((terms.network + terms.control + terms.input) / terms.total) < NOTABLE:
            return "compute"
        shares = {name: float(np.median(term / terms.total)) for name, term in terms.departures().items()}
        return max(shares, key=lambda name: shares[name])


def fit_throughput(rows: Sequence[MeasuredThroughput], machine: Machine | None = None, *,
                   priors: StepPriors = PRIORS, rng: np.random.Generator | None = None) -> ThroughputModel:
    """The step model fitted to measured ``rows`` of one workload on one kind of accelerator.

    ``machine`` tells how many accelerators share a node where the rows do not. Deterministic unless ``rng`` is given.
    Raises :class:`EvidenceError` without rows, or for a row whose figures cannot be.
    """
    node_size = None if machine is None else float(machine.accelerators_per_node)
    return ThroughputModel(fit_steps(merged(rows), node_size, priors,
                                     rng or np.random.default_rng(0)))
