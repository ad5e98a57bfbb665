"""The schedules' arithmetic on a device, with float64 scalars that stay on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class OnDevice:
    """The arithmetic of scalars on any device, where both sides of a choice are computed."""

    def constant(self, value: float, like: Tensor) -> Tensor:
        """Return a scalar on the same device."""
        return torch.full_like(like, value)

    def choose(
        self, condition: Tensor, then: Callable[[], Tensor], otherwise: Callable[[], Tensor]
    ) -> Tensor:
        """Select one of two values on the device."""
        return torch.where(condition, then(), otherwise())

    def by_milestones(
        self, epochs: Tensor, milestones: Sequence[float], values: Sequence[float]
    ) -> Tensor:
        """Make one choice for each milestone."""
        chosen = torch.full_like(epochs, values[0])
        for milestone, value in zip(milestones, values[1:], strict=True):
            chosen = torch.where(epochs >= milestone, value, chosen)
        return chosen

    def exponential(self, base: float, exponent: Tensor) -> Tensor:
        """Return the power by ``torch.pow``."""
        return torch.pow(base, exponent)

    def power(self, base: Tensor, exponent: float) -> Tensor:
        """Return the power by ``torch.pow``."""
        return base.pow(exponent)

    def cosine(self, angle: Tensor) -> Tensor:
        """Return the cosine by ``torch.cos``."""
        return torch.cos(angle)

    def share(self, t: Tensor) -> Tensor:
        """Limit the value to the range from 0 to 1, by clamping."""
        return t.clamp(0.0, 1.0)

    def at_least_zero(self, value: Tensor) -> Tensor:
        """Replace a negative value by 0, by clamping."""
        return value.clamp(min=0.0)

    def lerp(self, start: Tensor, end: Tensor, weight: float) -> Tensor:
        """Interpolate by ``torch.lerp``."""
        return start.lerp(end, weight)

    def finite(self, value: Tensor) -> Tensor:
        """Return a bool scalar."""
        return value.isfinite()

    def values(self, numbers: Tensor) -> Sequence[Tensor]:
        """Return views of the elements."""
        return numbers.unbind()


ON_DEVICE = OnDevice()
