"""Domains: the range of one tuned setting, its scale and its role.

Each domain maps its values to the unit interval and back. A :class:`Float` maps continuously; each value of an
:class:`Int` or a :class:`Categorical` owns one cell of the interval and maps to a point inside it, so that uniform
samples from the unit interval select all values evenly (evenly in the logarithm for ``log=True``).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from search_spaces.own_settings import Scalar, SettingError

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution


class Role(StrEnum):
    """The role of a setting in a study."""

    SCALED = "scaled"  # tuned at every rung of the ladder; a law extrapolates it to larger batches
    SHARED = "shared"  # tuned once, over all rungs together
    FIXED = "fixed"  # one value, never tuned


@dataclass(frozen=True)
class Float:
    """The real numbers from ``low`` to ``high``, both included; on a logarithmic scale if ``log``."""

    low: float
    high: float
    log: bool = False
    role: Role = Role.SHARED

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if not _is_number(end) or not abs(end) <= sys.float_info.max:
                raise SettingError(f"the ends of a range must be finite numbers, but got {end!r}")
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        _check_range(self)
        if self.log and math.log(self.low) == math.log(self.high):
            raise SettingError(
                f"low and high must differ in their logarithms, but got {self.low!r} and "
                f"{self.high!r}; give a single value instead of a range"
            )

    def contains(self, value: Any) -> bool:
        """Return whether ``value`` is a number in this range."""
        return _is_number(value) and self.low <= value <= self.high

    def clip(self, value: float) -> float:
        """Return the number in this range that is nearest to ``value``."""
        return float(min(max(value, self.low), self.high))

    def to_unit(self, value: float) -> float:
        """Return the position of ``value`` in [0, 1]; a value outside the range raises :class:`SettingError`."""
        _check_contained(self, value)
        low, high, place = (
            (self.low, self.high, value)
            if not self.log
            else (math.log(self.low), math.log(self.high), math.log(value))
        )
        # computed from halves, because high - low overflows for the widest float ranges
        width = high / 2 - low / 2
        if width == 0:  # the range is so narrow that half its width underflows
            return (value - self.low) / (self.high - self.low)
        return min(max((place / 2 - low / 2) / width, 0.0), 1.0)

    def from_unit(self, unit: float) -> float:
        """Return the value at the position ``unit`` in [0, 1]; the inverse of :meth:`to_unit` up to rounding."""
        _check_unit(unit)
        if not self.log:
            return self.clip((1 - unit) * self.low + unit * self.high)
        return self.clip(math.exp((1 - unit) * math.log(self.low) + unit * math.log(self.high)))

    def to_optuna(self) -> FloatDistribution:
        """Return the domain as an Optuna distribution."""
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Int:
    """The whole numbers from ``low`` to ``high``, both included; on a logarithmic scale if ``log``."""

    low: int
    high: int
    log: bool = False
    role: Role = Role.SHARED

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if not _is_whole(end):
                raise SettingError(
                    f"the ends of an integer range must be whole numbers, but got {end!r}"
                )
        _check_range(self)

    def contains(self, value: Any) -> bool:
        """Return whether ``value`` is a whole number in this range."""
        return _is_whole(value) and self.low <= value <= self.high

    def clip(self, value: float) -> int:
        """Return the whole number in this range that is nearest to ``value``."""
        return round(min(max(value, self.low), self.high))

    def to_unit(self, value: int) -> float:
        """Return the point of ``value`` inside its cell; a value outside the range raises :class:`SettingError`."""
        _check_contained(self, value)
        first, last = self._edges()
        place = math.log(value) if self.log else value
        return (place - first) / (last - first)

    def from_unit(self, unit: float) -> int:
        """Return the value whose cell holds ``unit``; the exact inverse of :meth:`to_unit`."""
        _check_unit(unit)
        first, last = self._edges()
        place = first + unit * (last - first)
        return self.clip(math.floor((math.exp(place) if self.log else place) + 0.5))

    def to_optuna(self) -> IntDistribution:
        """Return the domain as an Optuna distribution."""
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log)

    def _edges(self) -> tuple[float, float]:
        # half a unit beyond the ends, so that the first and last values also get a whole cell
        first, last = self.low - 0.5, self.high + 0.5
        return (math.log(first), math.log(last)) if self.log else (first, last)


@dataclass(frozen=True)
class Categorical:
    """A choice among at least two distinct ``values``: text, numbers, booleans or None."""

    values: tuple[Scalar, ...]
    role: Role = Role.SHARED

    def __post_init__(self) -> None:
        if not isinstance(self.values, (tuple, list)):
            raise SettingError(f"a choice must be a list of values, but got {self.values!r}")
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            if value is not None and not isinstance(value, (str, bool, int, float)):
                raise SettingError(
                    f"a choice must hold text, numbers, booleans or null, but got {value!r}"
                )
        if len(self.values) < 2 or len({_identity(value) for value in self.values}) < len(
            self.values
        ):
            raise SettingError(
                "a choice must hold at least two values, each once, but got "
                f"{list(self.values)}; write a single value without `choice`"
            )
        _check_role(self.role)
        if self.role is Role.SCALED and not all(map(_is_number, self.values)):
            raise SettingError(
                "role `scaled` needs numbers that a law can extrapolate, but got "
                f"{list(self.values)}; use role `shared`"
            )

    def contains(self, value: Any) -> bool:
        """Return whether ``value`` is one of the values; ``True`` does not count as 1."""
        return any(_identity(value) == _identity(mine) for mine in self.values)

    def clip(self, value: Any) -> Scalar:
        """Return ``value`` if it is one of the values, else the nearest number among them; raise if there is none."""
        if self.contains(value):
            return self.values[self._index(value)]
        numbers = [
            mine for mine in self.values if isinstance(mine, (int, float)) and _is_number(mine)
        ]
        if not _is_number(value) or not numbers:
            _check_contained(self, value)
        return min(numbers, key=lambda mine: abs(mine - value))

    def to_unit(self, value: Any) -> float:
        """Return the middle of the cell of ``value``; raise :class:`SettingError` if it is not one of the values."""
        _check_contained(self, value)
        return (self._index(value) + 0.5) / len(self.values)

    def from_unit(self, unit: float) -> Scalar:
        """Return the value whose cell holds ``unit``; the exact inverse of :meth:`to_unit`."""
        _check_unit(unit)
        return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]

    def to_optuna(self) -> CategoricalDistribution:
        """Return the domain as an Optuna distribution."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def _index(self, value: Any) -> int:
        return [_identity(mine) for mine in self.values].index(_identity(value))


Domain = Float | Int | Categorical


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _identity(value: Any) -> tuple[bool, Any]:
    # in Python True == 1 and False == 0; in a study they differ
    return isinstance(value, bool), value


def _check_range(domain: Float | Int) -> None:
    if not domain.low < domain.high:
        raise SettingError(
            f"`low < high` must hold, but got low {domain.low!r} and high {domain.high!r}; "
            "write a single value for a setting that is not tuned"
        )
    if domain.log and domain.low <= 0:
        raise SettingError(
            f"a logarithmic range must start above 0, but got low {domain.low!r}; "
            "use a uniform range"
        )
    _check_role(domain.role)


def _check_role(role: Role) -> None:
    if not isinstance(role, Role):
        raise SettingError(f"a role must be a Role, but got {role!r}; use Role({role!r})")
    if role is Role.FIXED:
        raise SettingError(
            "role `fixed` is for a setting with one value, but got several; write the single "
            "value (learning_rate: 0.1), or give the range the role `scaled` or `shared`"
        )


def _check_contained(domain: Domain, value: Any) -> None:
    if not domain.contains(value):
        where = (
            list(domain.values) if isinstance(domain, Categorical) else [domain.low, domain.high]
        )
        raise SettingError(
            f"a value must lie in {where}, but got {value!r}; clip() gives the nearest allowed value"
        )


def _check_unit(unit: float) -> None:
    if not 0 <= unit <= 1:
        raise SettingError(f"`0 <= unit <= 1` must hold, but got {unit!r}")
