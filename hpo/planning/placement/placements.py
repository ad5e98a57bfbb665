"""Placements: how a global batch is laid out over nodes, ranks and micro batches, and which layouts fit in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from search_spaces.divisors import divisors_of
from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.cost import WorkloadCost

GIB = 2**30
RESERVED_BYTES = 1.5 * GIB
"""Assumed memory of the accelerator's driver, the kernels' workspaces and the buffers of the all-reduces."""
GRADIENT_BYTES = 4  # per parameter: gradients accumulate in fp32
EVERY_NODE_COUNT = 16  # up to this, every number of nodes is tried; beyond it, four per octave


@dataclass(frozen=True, order=True)
class Placement:
    """``nodes`` with ``ranks_per_node`` workers each; every worker has the same share of the global batch, in samples.

    ``micro_batch_size`` is the number of samples in one forward pass; the last pass of an update may have fewer.
    """

    nodes: int
    ranks_per_node: int
    local_batch_size: int
    micro_batch_size: int

    @property
    def workers(self) -> int:
        """The number of ranks over all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch_size(self) -> int:
        """Samples per update over all workers."""
        return self.workers * self.local_batch_size

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes of one worker per update."""
        return -(-self.local_batch_size // self.micro_batch_size)


@dataclass(frozen=True)
class AcceleratorMemory:
    """Memory of one accelerator: bytes of weights, gradients and optimizer state, and of activations per sample."""

    capacity: float
    state: float
    per_sample: float

    def needed(self, micro_batch_size: int) -> float:
        """Return the bytes needed for a micro batch, including the state and the reserved memory."""
        return RESERVED_BYTES + self.state + self.per_sample * micro_batch_size

    @property
    def largest_micro_batch(self) -> int:
        """The most samples per forward pass; 0 if not even one fits."""
        left = self.capacity - RESERVED_BYTES - self.state
        return max(0, math.floor(left / self.per_sample)) if self.per_sample else 10**9


def memory_needs(
    cost: WorkloadCost, settings: TrainingSettings, capacity: float
) -> AcceleratorMemory:
    """Return the memory that training with these settings needs on accelerators of ``capacity`` bytes.

    Activations take half the memory in fp16 and bf16; with reduced-precision weights, so do the weights, and fp32
    master weights are added. Gradients accumulate in fp32. A lagged gradient is kept as well.
    """
    half = settings.precision in ("fp16", "bf16")
    weights = 2 + 4 if half and settings.reduced_weights else 4
    kept = GRADIENT_BYTES * (1 + settings.gradient_lag) + OPTIMIZERS[settings.optimizer].state_bytes
    return AcceleratorMemory(
        capacity,
        float(cost.parameters * (weights + kept)),
        cost.activation_bytes_per_sample * (0.5 if half else 1.0),
    )


@dataclass(frozen=True)
class PlacementSpace:
    """The search space of placements; ranges include both ends.

    ``unit`` is the normalization batch size, which no worker and no micro batch may split.
    """

    nodes: tuple[int, int]
    ranks_per_node: tuple[int, int]
    batches: tuple[int, int]
    unit: int
    largest_micro_batch: int
    workers: int | None = None

    @property
    def possible(self) -> bool:
        """Whether one normalization batch fits in memory."""
        return self.largest_micro_batch >= self.unit

    def placement(self, nodes: int, ranks_per_node: int, local_batch_size: int) -> Placement:
        """Return the placement with the fewest micro batches, of about equal size."""
        groups = local_batch_size // self.unit
        passes = -(-groups // max(1, self.largest_micro_batch // self.unit))
        return Placement(nodes, ranks_per_node, local_batch_size, -(-groups // passes) * self.unit)

    def holds(self, placement: Placement) -> bool:
        """Return whether a placement lies within these limits."""
        return (
            self.nodes[0] <= placement.nodes <= self.nodes[1]
            and self.ranks_per_node[0] <= placement.ranks_per_node <= self.ranks_per_node[1]
            and self.batches[0] <= placement.global_batch_size <= self.batches[1]
            and placement.local_batch_size % self.unit == 0
            and self.workers in (None, placement.workers)
        )


def placements_to_compare(space: PlacementSpace) -> list[Placement]:
    """Return the placements to compare: all for one batch size, or a grid over nodes and local batches if it is free.

    With a free batch every accelerator gets a rank, unless that is impossible.
    """
    if not space.possible:
        return []
    if space.batches[0] == space.batches[1]:
        return list(_of_one_batch(space, space.batches[0]))
    most = space.ranks_per_node[1]
    full = list(_of_many_batches(space, [most]))
    return full or list(_of_many_batches(space, range(space.ranks_per_node[0], most)))


def neighbouring_placements(placement: Placement, space: PlacementSpace) -> Iterator[Placement]:
    """Yield placements with slightly more or fewer nodes or normalization batches than this, if the batch is free."""
    groups = placement.local_batch_size // space.unit
    for nodes, share in itertools.product(_around(placement.nodes), _around(groups)):
        found = space.placement(nodes, placement.ranks_per_node, share * space.unit)
        if found != placement and space.holds(found):
            yield found


def steps_between(low: int, high: int) -> list[int]:
    """Return integers from ``low`` to ``high``: all up to EVERY_NODE_COUNT, then four per octave, and both ends."""
    numbers = {number for number in range(low, high + 1) if number <= EVERY_NODE_COUNT}
    octaves = range(max(low.bit_length() - 3, 0), high.bit_length())
    numbers |= {
        number
        for k in octaves
        for quarter in (4, 5, 6, 7)
        if low <= (number := quarter << k) <= high
    }
    return sorted(numbers | {low, high})


def _of_one_batch(space: PlacementSpace, batch: int) -> Iterator[Placement]:
    if batch % space.unit:
        return
    for workers in divisors_of(batch // space.unit):
        for ranks in range(space.ranks_per_node[0], space.ranks_per_node[1] + 1):
            if workers % ranks == 0:
                found = space.placement(workers // ranks, ranks, batch // workers)
                if space.holds(found):
                    yield found


def _of_many_batches(space: PlacementSpace, ranks: Iterable[int]) -> Iterator[Placement]:
    for nodes, per_node in itertools.product(steps_between(*space.nodes), ranks):
        unit = nodes * per_node * space.unit
        first, last = -(-space.batches[0] // unit), space.batches[1] // unit
        for groups in steps_between(max(first, 1), last) if last >= max(first, 1) else ():
            found = space.placement(nodes, per_node, groups * space.unit)
            if space.holds(found):
                yield found


def _around(number: int) -> Sequence[int]:
    near = {number + step for step in (-2, -1, 0, 1, 2)} | {
        number // 2,
        number * 2,
        round(number * 1.1),
        round(number / 1.1),
    }
    return sorted(each for each in near if each >= 1)
