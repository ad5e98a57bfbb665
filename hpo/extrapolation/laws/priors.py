"""What is believed before any evidence: a few numbers, learned from published reference points.

Every prior is normal in the coordinate that its name gives. ``log_critical_over_first`` is the logarithm of
the critical batch over the smallest rung of the ladder: people start their ladders where scaling is
perfect, and how far below the critical batch they start carries over from one workload to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Beliefs = TypeVar("Beliefs", bound="DataclassInstance")


@dataclass(frozen=True)
class Normal:
    """A normal belief: mean and standard deviation."""

    mean: float
    sd: float


def pool_all(start: Beliefs, believed: Sequence[Mapping[str, Normal]], start_counts: float) -> Beliefs:
    """A dataclass of beliefs, each pooled from those of many series; ``start`` counts as ``start_counts`` of them."""
    return replace(start, **{one.name: pool(getattr(start, one.name), [each[one.name] for each in believed],
                                            start_counts) for one in fields(start)})


def pool(start: Normal, believed: Sequence[Normal], start_counts: float) -> Normal:
    """The belief on one more series: the spread within and between those seen, ``start`` counting as so many."""
    count = len(believed) + start_counts
    mean = (sum(one.mean for one in believed) + start_counts * start.mean) / count
    squares = sum((one.mean - mean) ** 2 + one.sd**2 for one in believed)
    squares += start_counts * (start.sd**2 + (start.mean - mean) ** 2)
    return Normal(mean, math.sqrt(squares / count))


@dataclass(frozen=True)
class Priors:
    """Beliefs on the law of the epochs and on the scatter around it; natural logarithms.

    The defaults are what ``python -m hpo.extrapolation.inference.learn`` makes of the shipped reference points.
    """

    log_critical_over_first: Normal = Normal(2.73, 1.70)
    log_sharpness: Normal = Normal(0.20, 0.23)
    log_exponent: Normal = Normal(-0.15, 0.12)
    log_recipe_scatter: Normal = Normal(-3.07, 0.40)
