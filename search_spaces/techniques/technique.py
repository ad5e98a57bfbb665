"""Descriptions of techniques: optimizers, decays, warmups and batch controls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from search_spaces.own_settings import OwnSetting, faults_of_own

if TYPE_CHECKING:
    Faults = Callable[[Any], Iterator[str]]
    """Yields the errors in complete settings that choose the technique: the rule, the value and how to fix it."""


@dataclass(frozen=True)
class Use:
    """A condition: ``setting`` has one of ``values`` (or is above 0 if there are none), and ``also`` holds."""

    setting: str
    values: tuple[str, ...] = ()
    also: Use | None = None

    def hindrances(self, values_of: Callable[[str], Collection[Any]]) -> Iterator[str]:
        """Yield the settings that have no possible value for which the condition holds."""
        if not any(
            value in self.values if self.values else isinstance(value, (int, float)) and value > 0
            for value in values_of(self.setting)
        ):
            yield self.setting
        elif self.also is not None:
            yield from self.also.hindrances(values_of)

    def __str__(self) -> str:
        mine = (
            f"{self.setting} {listed_words(self.values)}"
            if self.values
            else f"{self.setting} above 0"
        )
        return mine if self.also is None else f"{mine} and {self.also}"


@dataclass(frozen=True, kw_only=True)
class Technique:
    """A technique and the settings that it reads; the base class of the descriptions of each kind.

    ``rule`` is its implementation, ``module:attribute``, which is imported when training starts. ``about`` says in a
    phrase what it does, and ``source`` where it was published. ``uses`` names the known settings that it reads, and
    ``uses_if`` those that it reads only if another setting has certain values. ``settings`` holds its extra settings,
    by name. ``faults`` finds invalid combinations of values if the technique is chosen.
    """

    rule: str
    about: str
    source: str
    uses: tuple[str, ...] = ()
    uses_if: Mapping[str, Use] = field(default_factory=dict)
    settings: Mapping[str, OwnSetting] = field(default_factory=dict)
    faults: Faults | None = None

    def __post_init__(self) -> None:
        module, colon, attribute = self.rule.partition(":")
        if not (module and colon and attribute):
            raise ValueError(f"rule must be 'package.module:attribute', but got {self.rule!r}")
        for name, setting in self.settings.items():
            for fault in faults_of_own(name, setting.default):
                raise ValueError(fault)
            setting.check(name, setting.default)


def listed_words(values: tuple[str, ...]) -> str:
    """Join values as ``a, b or c``."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"
