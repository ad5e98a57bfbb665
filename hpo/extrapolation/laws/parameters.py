"""The unknowns of the model: each has a name and a normal prior, and is sampled in whitened coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class LawParameter:
    """One unknown, or ``size`` independent ones, with a normal prior."""

    name: str
    mean: float
    sd: float
    size: int = 1


@dataclass(frozen=True)
class ParticleLayout:
    """The position of each parameter in a particle; a particle of zeros is the mean of every prior."""

    parameters: Sequence[LawParameter]

    @property
    def dimension(self) -> int:
        """The number of coordinates of a particle."""
        return sum(parameter.size for parameter in self.parameters)

    def values(self, particles: Array) -> Mapping[str, Array]:
        """Return the parameters of ``particles`` (count, dimension) by name, each (count,) or (count, size)."""
        found: dict[str, Array] = {}
        start = 0
        for parameter in self.parameters:
            block = parameter.mean + parameter.sd * particles[:, start : start + parameter.size]
            found[parameter.name] = block[:, 0] if parameter.size == 1 else block
            start += parameter.size
        return found


def logistic(values: Array) -> Array:
    """Return 1 / (1 + exp(-x)), which maps an unbounded unknown to a share between 0 and 1."""
    return np.asarray(1 / (1 + np.exp(np.minimum(-values, 700.0))))
