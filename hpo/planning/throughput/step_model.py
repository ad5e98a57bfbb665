"""The time of one step as a sum of terms that grow differently with accelerators and local batch.

With N accelerators, m per node, local batch b = B / N and x = b / b_0, where N_0 and b_0 belong to the smallest
measured row, the terms are, in units of that row's ideal computation::

    ideal    x
    compute  a x^q                          underuse at a small local batch, launches, the update; 0 < q < 1
    network  i (1 - 1/min(N, m))            reduction inside a node: the volume of a ring, 2 (N-1)/N of the gradients
             + j (1 - m/N)     (N > m)      the same between nodes
             + c log2 N                     latency of a tree, and similar terms
    control  s x log2(N/N_0)   (N > N_0)    stragglers: the slowest of N takes longer as N grows
    input    k x N/N_0                      a shared source of samples with a finite rate: the time grows with B

Samples per second are proportional to B divided by the sum. Rings, trees and their volumes are from Thakur,
Rabenseifner and Gropp 2005. The step time t = a + b x with the network added is from Qiao et al. 2021 (Pollux), eq.
9-11, but without the overlap exponent, which the published runs do not need because the terms are the exposed parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Limit = Literal["compute", "network", "input", "control"]


@dataclass(frozen=True)
class ThroughputPoints:
    """Configurations to predict; every array has shape (points,).

    ``node_size`` is the number of accelerators per node, NaN if unknown; ``least_node_size`` is its lower bound.
    """

    accelerators: Array
    global_batch_size: Array
    node_size: Array
    least_node_size: Array


@dataclass(frozen=True)
class ReferenceRow:
    """The smallest measured row: its accelerators N_0 and local batch b_0."""

    accelerators: float
    local_batch_size: float


@dataclass(frozen=True)
class StepTerms:
    """The terms of the step time in units of the reference's ideal computation; each has shape (particles, points)."""

    ideal: Array
    compute: Array
    network: Array
    control: Array
    input: Array

    @property
    def total(self) -> Array:
        """The time of the whole step."""
        return self.ideal + self.compute + self.network + self.control + self.input

    def departures(self) -> dict[Limit, Array]:
        """Return the terms that make a step longer than ideal, by cause."""
        return {
            "compute": self.compute,
            "network": self.network,
            "input": self.input,
            "control": self.control,
        }


def step_terms(
    values: Mapping[str, Array], points: ThroughputPoints, reference: ReferenceRow
) -> StepTerms:
    """Return the terms of the step, given parameters that each have shape (particles,)."""
    column = {name: value[:, None] for name, value in values.items()}
    accelerators = points.accelerators
    local = points.global_batch_size / accelerators / reference.local_batch_size
    growth = accelerators / reference.accelerators
    exponent = 1.0 / (1.0 + np.exp(-column["fixed_logit"]))
    node = _node_size(column, points)
    inside, between = (
        1.0 - 1.0 / np.minimum(accelerators, node),
        np.maximum(1.0 - node / accelerators, 0.0),
    )
    network = (
        np.exp(column["log_intra"]) * inside
        + np.exp(column["log_inter"]) * between
        + np.exp(column["log_latency"]) * np.log2(accelerators)
    )
    return StepTerms(
        ideal=np.broadcast_to(local, network.shape),
        compute=np.exp(column["log_fixed"]) * local**exponent,
        network=network,
        control=np.exp(column["log_straggler"]) * local * np.maximum(np.log2(growth), 0.0),
        input=np.exp(column["log_shared"]) * local * growth,
    )


def log_throughput(terms: StepTerms, points: ThroughputPoints) -> Array:
    """Return the log samples per second up to a constant, of shape (particles, points)."""
    return np.asarray(np.log(points.global_batch_size) - np.log(terms.total))


def _node_size(column: Mapping[str, Array], points: ThroughputPoints) -> Array:
    if not np.isnan(points.node_size).any():
        return points.node_size
    unknown = np.maximum(2.0 ** column["log2_node_size"], points.least_node_size)
    return np.where(np.isnan(points.node_size), unknown, points.node_size)
