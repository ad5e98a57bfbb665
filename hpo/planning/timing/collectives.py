"""The cost of an all-reduce: the number of consecutive messages, and the bytes that cross the busiest links.

The alpha-beta model (Hockney 1994): a message of m bytes takes ``alpha + beta m`` seconds, and links are full duplex.
For n bytes over p ranks, N nodes of L ranks each:

=================== ====================================== ==========================================================
all_reduce          consecutive messages                   source
=================== ====================================== ==========================================================
ring                2 (p-1)                                Patarasuk and Yuan, JPDC 69, 2009; bytes 2 (p-1)/p n
halving_doubling    2 (L-1) in a node, 2 log2 N between    Thakur et al., IJHPCA 19, 2005; Goyal et al., 1706.02677
tree                2 (L-1) in a node, 2 log2 N between    Sanders, Speck, Traeff 2009; NCCL 2.4 (double binary tree)
torus               2 (X-1) along a row, 2 (Y-1) along a   Mikami et al., arXiv:1811.05233
                    column of X x Y = p ranks
hierarchical        4 (k-1) in a group of k, 2 (p/k - 1)   Jia et al., arXiv:1807.11205
                    between the groups
hybrid              2 (L-1) in a node, 2 log2 N between    Kurth et al., arXiv:1810.01993; Horovod's hierarchical one
parameter_server    2, and 2 (L-1) in a node               Chilimbi et al., OSDI 2014
=================== ====================================== ==========================================================

The time of the summation is neglected: on accelerators it is small compared with the time on the links.

In a tapered network (Leiserson, IEEE Trans. Comput. 34, 1985), groups of g nodes (a rack, a cell) have uplinks with the
bandwidth of ``g / oversubscription`` nodes. Nodes are assumed to be numbered group by group, as topology-aware
schedulers do. The traffic that leaves a group is then:

=================== ===============================================================================================
ring, hierarchical  one node's traffic, as neighbours by number are neighbours in the ring
tree                the edges of both trees that leave the group: few, as a subtree's nodes are neighbours by number
halving_doubling    the pieces of steps that cross, 1/g - 1/N of the bytes each way where g is a power of two
                    (vectors are halved while distances double: Rabenseifner, ICCS 2004)
torus               the columns of the g nodes, and one node's traffic for a row that is longer than a group
parameter_server    the traffic of every node, except the share of servers in its own group
=================== ===============================================================================================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Number: TypeAlias = "float | Array"

GROUP_SIZE = 16
"""Ranks per group of the hierarchical all-reduce (Jia et al., section 4.3)."""

NODES_PER_SERVER = 4.5
"""Training nodes for each parameter server: 90 and 20 in Project Adam (Chilimbi et al., section 5.1)."""


@dataclass(frozen=True)
class RankLayout:
    """The layout of ranks: ``nodes`` of ``ranks_per_node`` each, with consecutive ranks in one node.

    The nodes are in groups of ``group_nodes`` consecutive nodes; None means that all are in one group.
    """

    nodes: int
    ranks_per_node: int
    group_nodes: int | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks over all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def group(self) -> int:
        """The number of nodes in a group."""
        return min(self.group_nodes or self.nodes, self.nodes)

    def leaving(self, volume: float, nodes: float = 1.0) -> float:
        """Return the bytes per node leaving a group if ``nodes`` of its nodes each send ``volume`` to another group."""
        return 0.0 if self.group == self.nodes else volume * min(1.0, nodes / self.group)


@dataclass(frozen=True)
class CollectiveLinks:
    """Seconds per message and per byte, between two ranks of a node and between nodes (all links of a node together).

    ``oversubscription`` is the ratio of the bandwidth of a group's nodes to that of its uplinks; at least 1.
    """

    message_in_node: Number
    byte_in_node: Number
    message_between: Number
    byte_between: Number
    oversubscription: float = 1.0


@dataclass(frozen=True)
class AllReduceSchedule:
    """An all-reduce in numbers: consecutive messages within a node and between nodes, and volumes.

    Volumes are bytes per byte of the gradient: what the busiest rank sends to others in its node, and what the busiest
    node sends to other nodes. If ``at_once``, both are sent at the same time, and the slower one counts.
    ``volume_leaving`` is the part of ``volume_between`` that goes to other groups of nodes, as a mean over the nodes of
    the busiest group.
    """

    messages_in_node: float = 0.0
    messages_between: float = 0.0
    volume_in_node: float = 0.0
    volume_between: float = 0.0
    at_once: bool = False
    volume_leaving: float = 0.0

    def seconds(self, size: Number, links: CollectiveLinks) -> Number:
        """Return the seconds for ``size`` bytes."""
        latency = (
            self.messages_in_node * links.message_in_node
            + self.messages_between * links.message_between
        )
        in_node, between = (
            self.volume_in_node * links.byte_in_node,
            self.volume_between * links.byte_between,
        )
        leaving = self.volume_leaving * links.byte_between
        if self.at_once:
            between = np.maximum(between, links.oversubscription * leaving)
            return latency + size * np.maximum(in_node, between)
        return latency + size * (in_node + between + (links.oversubscription - 1) * leaving)


def ring_all_reduce(layout: RankLayout) -> AllReduceSchedule:
    """Return one ring over all ranks, node after node; N of its p hops lead from one node to the next."""
    ranks = layout.ranks
    crossing = layout.nodes / ranks if layout.nodes > 1 else 0.0
    messages, volume = 2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks
    return AllReduceSchedule(
        messages * (1 - crossing),
        messages * crossing,
        volume if layout.ranks_per_node > 1 else 0.0,
        volume if layout.nodes > 1 else 0.0,
        at_once=True,
        volume_leaving=layout.leaving(volume),
    )


def halving_doubling(layout: RankLayout) -> AllReduceSchedule:
    """Return a reduction to one rank per node, halving and doubling between those, and a broadcast in each node.

    If N is not a power of two, binary blocks (Rabenseifner and Traeff 2004) take two more steps and at most 2 n bytes.
    """
    if layout.nodes == 1:
        return ring_all_reduce(layout)
    nodes, local = layout.nodes, layout.ranks_per_node
    whole = nodes & (nodes - 1) == 0
    return AllReduceSchedule(
        2.0 * (local - 1),
        2.0 * math.ceil(math.log2(nodes)),
        2.0 if local > 1 else 0.0,
        2.0 * (nodes - 1) / nodes if whole else 2.0,
        volume_leaving=0.0 if layout.group == nodes else _halved_leaving(nodes, layout.group),
    )


@functools.lru_cache(maxsize=4096)
def _halved_leaving(nodes: int, group: int) -> float:
    """Return the volume per node that halving and doubling sends out of the busiest group.

    It is computed for the largest power of two that does not exceed the number of nodes. Step k of the reduction
    exchanges 2^-(k+1) of the vector with the node 2^k away, and so does step k of the gathering.
    """
    steps = nodes.bit_length() - 1
    ranks = np.arange(2**steps)
    sent = np.zeros(len(ranks))
    for step in range(steps):
        partner = ranks ^ 2**step
        sent[ranks // group != partner // group] += 2.0**-step
    return float(np.bincount(ranks // group, weights=sent).max()) / group


def tree_all_reduce(layout: RankLayout) -> AllReduceSchedule:
    """Return two binary trees over the nodes, each for half of the bytes, and a pipelined chain in each node."""
    if layout.nodes == 1:
        return ring_all_reduce(layout)
    local = layout.ranks_per_node
    return AllReduceSchedule(
        2.0 * (local - 1),
        2.0 * math.ceil(math.log2(layout.nodes)),
        2.0 if local > 1 else 0.0,
        2.0,
        at_once=True,
        volume_leaving=0.0
        if layout.group == layout.nodes
        else _trees_leaving(layout.nodes, layout.group),
    )


@functools.lru_cache(maxsize=4096)
def _trees_leaving(nodes: int, group: int) -> float:
    """Return the volume per node that both trees send out of the busiest group: half the bytes per edge and direction.

    In NCCL's first tree a node's parent follows from the lowest set bit of its number; the second tree is its mirror
    image or, for an odd number of nodes, the first shifted by one.
    """
    node = np.arange(1, nodes)
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    parent = np.where(above < nodes, above, node ^ bit)
    ends = np.concatenate([node, parent]), np.concatenate([parent, node])
    sent = np.zeros(-(-nodes // group))
    for one, other in (
        ends,
        tuple((nodes - 1 - end) if nodes % 2 == 0 else (end + 1) % nodes for end in ends),
    ):
        crossing = one // group != other // group
        sent += 0.5 * np.bincount(one[crossing] // group, minlength=len(sent))
    return float(sent.max()) / group


def torus_all_reduce(layout: RankLayout, nodes_per_row: int | None = None) -> AllReduceSchedule:
    """Return a reduce-scatter along rows, an all-reduce of 1/X along columns, and an all-gather along rows.

    A row has all ranks of ``nodes_per_row`` nodes; by default the number that makes the torus closest to square.
    """
    local = layout.ranks_per_node
    wide = nodes_per_row or _squarest(layout)
    row, column = local * wide, layout.nodes // wide
    crossing = wide / row if wide > 1 else 0.0
    along_row = 2.0 * (row - 1)
    volume = along_row / row
    along_column = local * 2.0 * (column - 1) / column / row
    between = (volume if wide > 1 else 0.0) + along_column
    return AllReduceSchedule(
        along_row * (1 - crossing),
        along_row * crossing + 2.0 * (column - 1),
        volume if local > 1 else 0.0,
        between,
        volume_leaving=layout.leaving(along_column, wide)
        + (layout.leaving(volume) if wide > layout.group else 0.0),
    )


def hierarchical_all_reduce(layout: RankLayout, group_size: int = GROUP_SIZE) -> AllReduceSchedule:
    """Return a ring reduction in each group, a ring over one master of each group, and a broadcast in each group.

    The reduction is a ring's reduce-scatter and gather, the broadcast a scatter and all-gather, 2 (k-1) steps each.
    """
    group = min(group_size, layout.ranks)
    groups = -(-layout.ranks // group)
    nodes_in_group = -(-group // layout.ranks_per_node)
    crossing = nodes_in_group / group if nodes_in_group > 1 else 0.0
    leaving = min(layout.nodes, groups) / groups if layout.nodes > 1 else 0.0
    inside, outside = 4.0 * (group - 1), 2.0 * (groups - 1)
    in_node = (inside / group if layout.ranks_per_node > 1 else 0.0) + (
        outside / groups if leaving < 1 else 0.0
    )
    between = (inside / group if crossing else 0.0) + (outside / groups if leaving else 0.0)
    return AllReduceSchedule(
        inside * (1 - crossing) + outside * (1 - leaving),
        inside * crossing + outside * leaving,
        in_node,
        between,
        volume_leaving=(layout.leaving(outside / groups) if leaving else 0.0)
        + (layout.leaving(inside / group) if nodes_in_group > layout.group else 0.0),
    )


def hybrid_all_reduce(layout: RankLayout) -> AllReduceSchedule:
    """Return a reduction in each node by NCCL, an all-reduce of parts of the sum by MPI, and a broadcast by NCCL.

    Some ranks of a node (four of Summit's six) all-reduce a part each. Together they saturate all adapters of the node,
    so their number does not matter here.
    """
    return halving_doubling(layout)


def parameter_server(layout: RankLayout, servers: int | None = None) -> AllReduceSchedule:
    """Return a schedule: every node sends its sum to the servers, which hold one part each, and fetches the weights."""
    if layout.nodes == 1:
        return ring_all_reduce(layout)
    local = layout.ranks_per_node
    number = servers or max(1, math.ceil(layout.nodes / NODES_PER_SERVER))
    volume = 2.0 * max(1.0, layout.nodes / number)
    return AllReduceSchedule(
        2.0 * (local - 1),
        2.0,
        2.0 if local > 1 else 0.0,
        volume,
        volume_leaving=layout.leaving(volume * (1 - layout.group / layout.nodes), layout.group),
    )


ALL_REDUCES: dict[str, Callable[[RankLayout], AllReduceSchedule]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "halving_doubling": halving_doubling,
    "torus": torus_all_reduce,
    "hierarchical": hierarchical_all_reduce,
    "hybrid": hybrid_all_reduce,
    "parameter_server": parameter_server,
}


def all_reduce_seconds(
    name: str, size: Number, layout: RankLayout, links: CollectiveLinks
) -> Number:
    """Return the seconds that the all-reduce ``name`` of ``size`` bytes takes; ``auto`` is the faster of ring and tree.

    NCCL chooses in the same way.
    """
    if layout.ranks == 1:
        return 0.0 * np.asarray(size)
    if name == "auto":
        return np.minimum(
            ring_all_reduce(layout).seconds(size, links),
            tree_all_reduce(layout).seconds(size, links),
        )
    return ALL_REDUCES[name](layout).seconds(size, links)


def _squarest(layout: RankLayout) -> int:
    def ratio(wide: int) -> float:
        return abs(math.log(layout.ranks_per_node * wide / (layout.nodes // wide)))

    return min((wide for wide in range(1, layout.nodes + 1) if layout.nodes % wide == 0), key=ratio)
