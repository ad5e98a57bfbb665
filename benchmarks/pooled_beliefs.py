"""Beliefs pooled over many series: the priors of a new one, from what the fits of the others believe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from hpo.extrapolation.laws.priors import NormalPrior

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Beliefs = TypeVar("Beliefs", bound="DataclassInstance")


def pool_all(
    start: Beliefs, believed: Sequence[Mapping[str, NormalPrior]], start_counts: float
) -> Beliefs:
    """Return a dataclass of beliefs, each pooled over many series; ``start`` counts as ``start_counts`` of them."""
    return replace(
        start,
        **{
            name: pool(getattr(start, name), [each[name] for each in believed], start_counts)
            for name in names(start)
        },
    )


def names(beliefs: DataclassInstance) -> list[str]:
    """Return the names of the fields that hold a belief."""
    return [
        one.name for one in fields(beliefs) if isinstance(getattr(beliefs, one.name), NormalPrior)
    ]


def pool(start: NormalPrior, believed: Sequence[NormalPrior], start_counts: float) -> NormalPrior:
    """The belief for a new series: the spread within and between those seen and ``start``, worth ``start_counts``."""
    count = len(believed) + start_counts
    mean = (sum(one.mean for one in believed) + start_counts * start.mean) / count
    squares = sum((one.mean - mean) ** 2 + one.sd**2 for one in believed)
    squares += start_counts * (start.sd**2 + (start.mean - mean) ** 2)
    return NormalPrior(mean, math.sqrt(squares / count))
