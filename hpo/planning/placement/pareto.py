"""The Pareto front of time against accelerator hours: the candidates that no other dominates."""

from __future__ import annotations

from collections.abc import Sequence

from hpo.planning.placement.candidates import PlacementCandidate

SHOWN = 8
NEARLY_FASTEST = 1.1


def pareto_front(candidates: Sequence[PlacementCandidate]) -> list[PlacementCandidate]:
    """Return the candidates that no other dominates in expected time and accelerator hours, fastest first."""
    found: list[PlacementCandidate] = []
    for each in sorted(
        candidates, key=lambda each: (each.expected_seconds, each.expected_hours, each.placement)
    ):
        if not found or each.expected_hours < found[-1].expected_hours:
            found.append(each)
    return found


def pareto_knee(fastest_first: Sequence[PlacementCandidate]) -> PlacementCandidate:
    """Return the member with the fewest accelerator hours among those within NEARLY_FASTEST times the least time."""
    limit = NEARLY_FASTEST * fastest_first[0].expected_seconds
    return [each for each in fastest_first if each.expected_seconds <= limit][-1]


def front_excerpt(
    fastest_first: Sequence[PlacementCandidate],
    always: Sequence[PlacementCandidate] = (),
    most: int = SHOWN,
) -> list[PlacementCandidate]:
    """Return at most ``most`` members, evenly spaced in log time, including the ends and ``always``."""
    first, last = fastest_first[0].expected_seconds, fastest_first[-1].expected_seconds
    kept = {id(each) for each in (fastest_first[0], fastest_first[-1], *always)}
    slots = max(most - len(kept), 0)
    for slot in range(1, slots + 1):
        wanted = first * (last / first) ** (slot / (slots + 1))
        kept.add(id(min(fastest_first, key=lambda each: abs(each.expected_seconds / wanted - 1))))
    return [each for each in fastest_first if id(each) in kept]
