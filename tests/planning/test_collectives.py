"""Formulas against algorithms that are actually run: every message moves numbers, and is counted."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from hpo.planning.timing.collectives import (
    ALL_REDUCES,
    CollectiveLinks,
    RankLayout,
    all_reduce_seconds,
    halving_doubling,
    hierarchical_all_reduce,
    hybrid_all_reduce,
    parameter_server,
    ring_all_reduce,
    torus_all_reduce,
    tree_all_reduce,
)


class Run:
    """Ranks with one vector each; rounds of messages, sent at once, that add to or replace parts of the receiver's."""

    def __init__(self, layout, elements):
        self.layout, self.elements = layout, elements
        rng = np.random.default_rng(layout.ranks)
        self.values = rng.integers(-9, 9, (layout.ranks, elements)).astype(float)
        self.expected = self.values.sum(0)
        self.rounds = 0
        self.crossing_rounds = 0
        self.in_node, self.between, self.leaving = Counter(), Counter(), Counter()

    def node(self, rank):
        return rank // self.layout.ranks_per_node

    def group(self, rank):
        return self.node(rank) // self.layout.group

    def send(self, messages):
        """One round of (sender, receiver, slice, whether to add)."""
        loads = [
            (receiver, part, add, self.values[sender, part].copy())
            for sender, receiver, part, add in messages
        ]
        for sender, receiver, part, _ in messages:
            share = len(range(*part.indices(self.elements))) / self.elements
            if self.node(sender) == self.node(receiver):
                self.in_node[sender] += share
            else:
                self.between[self.node(sender)] += share
            if self.group(sender) != self.group(receiver):
                self.leaving[self.group(sender)] += share
        for receiver, part, add, load in loads:
            self.values[receiver, part] = load + (self.values[receiver, part] if add else 0)
        self.rounds += 1
        self.crossing_rounds += any(
            self.node(sender) != self.node(receiver) for sender, receiver, *_ in messages
        )

    def check(self, ranks=None):
        np.testing.assert_array_equal(self.values[ranks or slice(None)] - self.expected, 0)

    @property
    def volume_in_node(self):
        return max(self.in_node.values(), default=0.0)

    @property
    def volume_between(self):
        return max(self.between.values(), default=0.0)

    @property
    def volume_leaving(self):
        """Of the busiest group, over its nodes."""
        return max(self.leaving.values(), default=0.0) / self.layout.group


def cut(part, number):
    size = (part.stop - part.start) // number
    return [
        slice(part.start + size * index, part.start + size * (index + 1)) for index in range(number)
    ]


def scatter_rings(run, rings):
    """Ring reduce-scatter of several rings at once, each (ranks, slice); the rank at i ends with piece i + 1."""
    for step in range(len(rings[0][0]) - 1):
        run.send(
            [
                (
                    rank,
                    ranks[(i + 1) % len(ranks)],
                    cut(part, len(ranks))[(i - step) % len(ranks)],
                    True,
                )
                for ranks, part in rings
                for i, rank in enumerate(ranks)
            ]
        )


def gather_rings(run, rings):
    for step in range(len(rings[0][0]) - 1):
        run.send(
            [
                (
                    rank,
                    ranks[(i + 1) % len(ranks)],
                    cut(part, len(ranks))[(i + 1 - step) % len(ranks)],
                    False,
                )
                for ranks, part in rings
                for i, rank in enumerate(ranks)
            ]
        )


def whole(run):
    return slice(0, run.elements)


@pytest.mark.parametrize(
    ("nodes", "local", "group"),
    [(1, 4, None), (4, 1, 2), (3, 2, 1), (2, 4, 2), (6, 2, 3), (6, 1, 4)],
)
def test_ring(nodes, local, group):
    layout = RankLayout(nodes, local, group)
    run = Run(layout, 2 * layout.ranks)
    rings = [(list(range(layout.ranks)), whole(run))]
    scatter_rings(run, rings)
    gather_rings(run, rings)
    run.check()
    found = ring_all_reduce(layout)
    assert (
        found.messages_in_node + found.messages_between
        == pytest.approx(run.rounds)
        == 2 * (layout.ranks - 1)
    )
    assert (found.volume_in_node, found.volume_between, found.volume_leaving) == pytest.approx(
        (run.volume_in_node, run.volume_between, run.volume_leaving)
    )


@pytest.mark.parametrize(("nodes", "local"), [(3, 2), (2, 4), (5, 1), (1, 6)])
def test_of_the_hops_that_a_piece_makes_around_a_ring_the_share_that_leaves_a_node(nodes, local):
    layout = RankLayout(nodes, local)
    ranks, hops = layout.ranks, 2 * (layout.ranks - 1)
    crossings = [
        sum(
            (start + hop) % ranks // local != (start + hop + 1) % ranks // local
            for hop in range(hops)
        )
        for start in range(ranks)
    ]
    assert ring_all_reduce(layout).messages_between == pytest.approx(np.mean(crossings))


@pytest.mark.parametrize(("nodes", "group"), [(2, 1), (4, None), (8, 2), (16, 4), (16, 8)])
def test_halving_and_doubling(nodes, group):
    layout = RankLayout(nodes, 1, group)
    run = Run(layout, 2 * nodes)
    parts = [whole(run)] * nodes
    for distance in (2**k for k in range(int(math.log2(nodes)))):
        halves = [cut(part, 2) for part in parts]
        run.send(
            [
                (rank, rank ^ distance, halves[rank][not rank & distance], True)
                for rank in range(nodes)
            ]
        )
        parts = [halves[rank][bool(rank & distance)] for rank in range(nodes)]
    for distance in (2**k for k in reversed(range(int(math.log2(nodes))))):
        run.send([(rank, rank ^ distance, parts[rank], False) for rank in range(nodes)])
        parts = [
            slice(
                min(parts[rank].start, parts[rank ^ distance].start),
                max(parts[rank].stop, parts[rank ^ distance].stop),
            )
            for rank in range(nodes)
        ]
    run.check()
    found = halving_doubling(layout)
    assert (found.messages_in_node, found.messages_between) == (0, run.rounds)
    assert (found.volume_in_node, found.volume_between) == (0, pytest.approx(run.volume_between))
    assert found.volume_leaving == pytest.approx(run.volume_leaving)


@pytest.mark.parametrize(("nodes", "group"), [(64, 1), (64, 16), (1024, 32)])
def test_what_leaves_an_aligned_group_when_halving(nodes, group):
    """The steps over a distance of a group or more: 1/g - 1/N of the bytes each way."""
    found = halving_doubling(RankLayout(nodes, 1, group)).volume_leaving
    assert found == pytest.approx(2 / group - 2 / nodes)
    # a rack of 34 cuts some of the pairs at shorter distances too
    assert found < halving_doubling(RankLayout(nodes, 1, group - 1 or 1)).volume_leaving + 1e-9


def test_binary_blocks_of_six_nodes():
    """4 + 2: each block halves; the two of the small one hand their halves, in quarters, to the four; and back."""
    run = Run(RankLayout(6, 1), 8)
    halves, quarters = cut(whole(run), 2), cut(whole(run), 4)
    run.send(
        [
            *((rank, rank ^ 2, halves[not rank & 2], True) for rank in range(4)),
            *((4 + rank, 4 + (rank ^ 1), halves[1 - rank], True) for rank in range(2)),
        ]
    )
    run.send([(rank, rank ^ 1, quarters[(rank & 2) + (not rank & 1)], True) for rank in range(4)])
    sending = run.rounds
    run.send([(4 + quarter // 2, quarter, quarters[quarter], True) for quarter in range(4)])
    run.send([(quarter, 4 + quarter // 2, quarters[quarter], False) for quarter in range(4)])
    run.send(
        [
            *((rank, rank ^ 1, quarters[rank], False) for rank in range(4)),
            *((4 + rank, 4 + (rank ^ 1), halves[rank], False) for rank in range(2)),
        ]
    )
    run.send([(rank, rank ^ 2, halves[rank // 2], False) for rank in range(4)])
    run.check()
    found = halving_doubling(RankLayout(6, 1))
    assert found.messages_between == run.rounds == 2 * sending + 2
    assert 2 * 3 / 4 < run.volume_between <= found.volume_between == 2


@pytest.mark.parametrize(
    ("nodes", "local", "wide", "group"),
    [(4, 2, 1, 2), (4, 2, 2, None), (6, 1, 3, 3), (8, 4, 1, 4), (3, 2, 3, 1), (8, 1, 4, 2)],
)
def test_torus(nodes, local, wide, group):
    layout = RankLayout(nodes, local, group)
    across, down = local * wide, nodes // wide
    run = Run(layout, 2 * layout.ranks)
    rows = [
        ([row * across + column for column in range(across)], whole(run)) for row in range(down)
    ]
    scatter_rings(run, rows)
    pieces = cut(whole(run), across)
    columns = [
        ([row * across + column for row in range(down)], pieces[(column + 1) % across])
        for column in range(across)
    ]
    scatter_rings(run, columns)
    gather_rings(run, columns)
    gather_rings(run, rows)
    run.check()
    found = torus_all_reduce(layout, wide)
    assert found.messages_in_node + found.messages_between == pytest.approx(run.rounds)
    assert run.rounds == 2 * (across - 1) + 2 * (down - 1)
    assert (found.volume_in_node, found.volume_between, found.volume_leaving) == pytest.approx(
        (run.volume_in_node, run.volume_between, run.volume_leaving)
    )


@pytest.mark.parametrize(
    ("nodes", "local", "group", "rack"),
    [(4, 2, 4, 2), (4, 4, 4, 1), (2, 8, 4, None), (6, 2, 4, 2), (16, 1, 4, 8)],
)
def test_groups_of_the_hierarchical_all_reduce(nodes, local, group, rack):
    layout = RankLayout(nodes, local, rack)
    run = Run(layout, layout.ranks * group)
    groups = [list(range(first, first + group)) for first in range(0, layout.ranks, group)]
    inside = [(ranks, whole(run)) for ranks in groups]
    masters = [ranks[0] for ranks in groups]
    scatter_rings(run, inside)
    for step in range(group - 1):  # the pieces travel along the ring to the master
        run.send(
            [
                (
                    ranks[i],
                    ranks[(i + 1) % group],
                    cut(whole(run), group)[(i + 1 - step) % group],
                    False,
                )
                for ranks in groups
                for i in range(step + 1, group)
            ]
        )
    assert run.rounds == 2 * (group - 1)
    scatter_rings(run, [(masters, whole(run))])
    gather_rings(run, [(masters, whole(run))])
    run.check(masters)
    for step in range(group - 1):  # and away from it, the piece for the farthest first
        run.send(
            [
                (ranks[i], ranks[i + 1], cut(whole(run), group)[(group + i - step) % group], False)
                for ranks in groups
                for i in range(step + 1)
            ]
        )
    gather_rings(run, inside)
    run.check()
    found = hierarchical_all_reduce(layout, group)
    assert found.volume_leaving == pytest.approx(run.volume_leaving)
    assert found.messages_in_node + found.messages_between == pytest.approx(run.rounds)
    if group <= local:
        assert found.volume_between == pytest.approx(run.volume_between)
    else:  # scatter and gather load only a part of the ring's links fully
        assert run.volume_between <= found.volume_between <= 1.5 * run.volume_between


def parents(nodes):
    """NCCL's binary tree: odd nodes are leaves, and the parent follows from the lowest bit of a node's number."""
    found = {}
    for node in range(1, nodes):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        found[node] = up if up < nodes else node ^ bit
    return found


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 8, 13, 16, 33, 64, 100])
def test_two_trees(nodes):
    """Each carries half; the second is the first with its numbers shifted by one, so that inner nodes become leaves."""
    first = parents(nodes)
    if nodes % 2 == 0:
        second = {nodes - 1 - node: nodes - 1 - up for node, up in first.items()}
    else:
        second = {(node + 1) % nodes: (up + 1) % nodes for node, up in first.items()}
    sent = Counter()
    for edges in (first, second):
        for child, parent in edges.items():
            sent[child] += 0.5
            sent[parent] += 0.5
    for group in (1, 2, 4, 5, 8, 32):
        leaving = Counter()
        for edges in (first, second):
            for child, parent in edges.items():
                if child // group != parent // group:
                    leaving[child // group] += 0.5
                    leaving[parent // group] += 0.5
        leaves = tree_all_reduce(RankLayout(nodes, 1, group)).volume_leaving
        assert leaves == pytest.approx(max(leaving.values(), default=0.0) / group)
        assert leaves <= 6 / group  # a dozen edges at most, however large the group

    def depth(node):
        return 0 if node == 0 else 1 + depth(first[node])

    found = tree_all_reduce(RankLayout(nodes, 1))
    assert found.messages_between == 2 * max(map(depth, range(nodes)))
    assert max(sent.values()) <= found.volume_between == 2


@pytest.mark.parametrize(("nodes", "servers"), [(9, 2), (90, 20), (4, 4), (6, 1)])
def test_parameter_servers(nodes, servers):
    """The busiest link: a server takes 1/S of every node's gradient and hands out as much; a node, n each way."""
    server = nodes / servers
    assert parameter_server(RankLayout(nodes, 1), servers).volume_between == pytest.approx(
        2 * max(server, 1)
    )
    assert parameter_server(RankLayout(nodes, 1), servers).messages_between == 2


LINKS = CollectiveLinks(3e-6, 1 / 50e9, 10e-6, 1 / 10e9)


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_limits_and_monotony_of_every_all_reduce(name):
    rng = np.random.default_rng(0)
    for _ in range(50):
        nodes, local = int(rng.integers(2, 300)), int(rng.integers(1, 9))
        size = float(10 ** rng.uniform(3, 9))
        layout = RankLayout(nodes, local)
        seconds = all_reduce_seconds(name, size, layout, LINKS)
        assert all_reduce_seconds(name, 2 * size, layout, LINKS) > seconds
        slower = CollectiveLinks(
            LINKS.message_in_node, LINKS.byte_in_node, LINKS.message_between, 2 * LINKS.byte_between
        )
        assert seconds <= all_reduce_seconds(name, size, layout, slower) <= 2 * seconds
        # no all-reduce can send less than (N-1)/N of all bytes out of a node, twice (Patarasuk and Yuan 2009)
        assert seconds >= 2 * (nodes - 1) / nodes * size * LINKS.byte_between * 0.999
        free = CollectiveLinks(0.0, 0.0, 0.0, 0.0)
        assert all_reduce_seconds(name, size, layout, free) == 0


@pytest.mark.parametrize("name", [*ALL_REDUCES, "auto"])
def test_one_rank_has_nothing_to_reduce_and_one_node_needs_no_network(name):
    assert all_reduce_seconds(name, 1e6, RankLayout(1, 1), LINKS) == 0
    costly = CollectiveLinks(LINKS.message_in_node, LINKS.byte_in_node, 1.0, 1.0)
    assert all_reduce_seconds(name, 1e6, RankLayout(1, 8), costly) == all_reduce_seconds(
        name, 1e6, RankLayout(1, 8), LINKS
    )


@pytest.mark.parametrize("name", [*ALL_REDUCES, "auto"])
def test_a_taper_costs_nothing_in_one_group_and_at_most_its_factor_beyond(name):
    rng = np.random.default_rng(1)
    for _ in range(50):
        nodes, local = int(rng.integers(2, 300)), int(rng.integers(1, 9))
        group, factor = int(rng.integers(1, 300)), float(rng.uniform(1, 8))
        size = float(10 ** rng.uniform(3, 9))
        flat = all_reduce_seconds(name, size, RankLayout(nodes, local), LINKS)

        def seconds(factor, group=group, name=name, size=size, nodes=nodes, local=local):
            links = dataclasses.replace(LINKS, oversubscription=factor)
            return all_reduce_seconds(name, size, RankLayout(nodes, local, group), links)

        assert seconds(1.0) == pytest.approx(flat)
        assert flat * (1 - 1e-12) <= seconds(factor) <= seconds(2 * factor) <= 2 * factor * flat
        if nodes <= group:
            assert seconds(factor) == pytest.approx(flat)
        else:
            assert seconds(factor, group=1) >= seconds(factor) * (1 - 1e-12)


def test_in_racks_of_one_node_a_taper_is_a_slower_network():
    """Then all that leaves a node leaves its group."""
    layout, size = RankLayout(64, 4, 1), 1e9
    slower = dataclasses.replace(LINKS, byte_between=3 * LINKS.byte_between)
    tapered = dataclasses.replace(LINKS, oversubscription=3.0)
    for name in ("ring", "tree", "halving_doubling", "torus", "hierarchical"):
        assert all_reduce_seconds(name, size, layout, tapered) == pytest.approx(
            all_reduce_seconds(name, size, layout, slower)
        )


def test_the_automatic_choice_is_the_tree_for_small_and_the_ring_for_large_messages():
    layout = RankLayout(512, 8)
    for size, best in ((1e4, tree_all_reduce), (1e12, ring_all_reduce)):
        assert all_reduce_seconds("auto", size, layout, LINKS) == pytest.approx(
            best(layout).seconds(size, LINKS)
        )


def test_the_torus_is_as_square_as_it_can_be_made():
    assert torus_all_reduce(RankLayout(256, 4)) == torus_all_reduce(
        RankLayout(256, 4), 8
    )  # 32 x 32, as Mikami et al. for 1,024
    assert torus_all_reduce(RankLayout(864, 4)) == torus_all_reduce(
        RankLayout(864, 4), 16
    )  # 64 x 54


def test_mikamis_rows_save_what_jias_groups_send_between_nodes():
    """arXiv:1811.05233, section 2.2: the payload of the second phase is X times smaller than a hierarchical one's."""
    layout = RankLayout(64, 4)
    rows, groups = torus_all_reduce(layout, 1), hierarchical_all_reduce(layout, 4)
    assert rows.volume_between == pytest.approx(
        groups.volume_between
    )  # four columns share the node's adapters
    assert rows.volume_in_node < groups.volume_in_node


def test_the_hybrid_sends_between_nodes_what_one_rank_of_each_would():
    assert (
        hybrid_all_reduce(RankLayout(1024, 6)).volume_between
        == halving_doubling(RankLayout(1024, 1)).volume_between
    )
