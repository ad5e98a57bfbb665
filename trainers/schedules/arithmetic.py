"""The operations of the schedules' formulas beyond + - * /, for progress as a plain number or as a device scalar.

For plain numbers a choice is a branch. On a device both sides are computed and one is selected, so that the host does
not wait for the progress. Constants remain plain numbers, so that nothing is copied to the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    Value = TypeVar("Value", float, Tensor)
else:
    Value = TypeVar("Value")  # numbers need no torch


class Arithmetic(Protocol[Value]):
    """The operations on one kind of value."""

    def constant(self, value: float, like: Value) -> Value:
        """Convert a plain number to the kind of another value."""

    def choose(
        self, condition: Any, then: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """Return one of two values, depending on the result of a comparison."""

    def by_milestones(
        self, epochs: Value, milestones: Sequence[float], values: Sequence[float]
    ) -> Value:
        """Return ``values[n]`` if n of the increasing ``milestones`` have been passed."""

    def exponential(self, base: float, exponent: Value) -> Value:
        """Return the base to the power of a value."""

    def power(self, base: Value, exponent: float) -> Value:
        """Return a value to the power of a number."""

    def cosine(self, angle: Value) -> Value:
        """Return the cosine of an angle in radians."""

    def share(self, t: Value) -> Value:
        """Limit the value to the range from 0 to 1."""

    def at_least_zero(self, value: Value) -> Value:
        """Return the value, or 0 if it is negative."""

    def lerp(self, start: Value, end: Value, weight: float) -> Value:
        """Return ``start + weight * (end - start)``."""

    def finite(self, value: Value) -> Any:
        """Return whether the value is finite, as a condition for :meth:`choose`."""

    def values(self, numbers: Tensor) -> Sequence[Value]:
        """Return the numbers of a tensor of shape ``(n,)``."""


class Numbers:
    """Plain numbers, with Python's own functions."""

    def constant(self, value: float, like: float) -> float:  # noqa: ARG002
        """Return the number itself."""
        return value

    def choose(
        self, condition: Any, then: Callable[[], float], otherwise: Callable[[], float]
    ) -> float:
        """Return the chosen side without computing the other."""
        return then() if condition else otherwise()

    def by_milestones(
        self, epochs: float, milestones: Sequence[float], values: Sequence[float]
    ) -> float:
        """Return the value for the number of milestones that have been passed."""
        return values[sum(epochs >= milestone for milestone in milestones)]

    exponential = staticmethod(math.pow)
    power = staticmethod(math.pow)
    cosine = staticmethod(math.cos)

    finite = staticmethod(math.isfinite)

    def share(self, t: float) -> float:
        """Limit the number to the range from 0 to 1."""
        return min(1.0, max(0.0, t))

    def at_least_zero(self, value: float) -> float:
        """Return the larger of 0 and the number."""
        return max(0.0, value)

    def lerp(self, start: float, end: float, weight: float) -> float:
        """Interpolate linearly."""
        return start + weight * (end - start)

    def values(self, numbers: Tensor) -> Sequence[float]:
        """Read the numbers, which waits for an accelerator."""
        return numbers.tolist()


NUMBERS = Numbers()
