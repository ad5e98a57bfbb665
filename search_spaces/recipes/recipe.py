"""Recipe: one published large-batch training run as data, with its settings, its scaling rules and its results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.settings import SettingError, TrainingSettings, is_whole

PROVENANCE = {
    "text": "read in the paper's text",
    "abstract": "read in the paper's abstract",
    "code": "read in released code",
    "log": "read in published logs",
    "article": "read in an article or a talk about it",
    "calculated": "calculated from published figures",
    "memory high": "recalled, cross-checked against other figures",
    "memory medium": "recalled, not checked",
    "memory low": "recalled, doubtful",
}
"""The possible sources of a figure, which indicate how reliable it is."""

BATCH_DEPENDENT = ("learning_rate", "warmup_epochs")
"""Settings whose published value does not transfer to another batch size."""


class RecipeError(SettingError):
    """Error for a recipe that does not exist or lacks a requested value."""


@dataclass(frozen=True)
class Source:
    """The publication of a recipe; ``checked`` names the files and texts that were read for it."""

    paper: str
    arxiv: str | None = None
    section: str | None = None
    repository: str | None = None
    checked: str | None = None


@dataclass(frozen=True)
class Result:
    """The result of one published training run, in the unit that ``metric`` names.

    ``provenance`` is a key of :data:`PROVENANCE`; ``global_batch_size`` is None if unknown.
    """

    metric: str
    value: float
    provenance: str
    global_batch_size: int | None = None
    hardware: str | None = None
    time: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Scaling:
    """One setting as a function of the global batch size B: ``value * (B / at)^power``, at most ``most``.

    The setting is 0 for every B up to ``above``.
    """

    value: float
    at: int = 1
    power: float = 0.0
    most: float = math.inf
    above: int = 0

    def __call__(self, global_batch_size: int) -> float:
        """Return the setting's value at a global batch size (in samples per update)."""
        if global_batch_size <= self.above:
            return 0.0
        return min(self.most, self.value * math.pow(global_batch_size / self.at, self.power))

    def __str__(self) -> str:
        if self.power == 0:
            return f"{self.value:g}" + (f" above {self.above:,}, else 0" if self.above else "")
        most = f", at most {self.most:g}" if math.isfinite(self.most) else ""
        return (
            f"{self.value:g} x (B / {self.at:,})"
            + ("" if self.power == 1 else f"^{self.power:g}")
            + most
        )


@dataclass(frozen=True)
class Recipe:
    """One published training run.

    ``settings`` holds the values at ``global_batch_size``, by the names in :class:`TrainingSettings`. ``scaling`` has
    formulas for the settings that change with the batch size, and ``table`` has their values at published batch
    sizes. ``unknown`` lists the settings whose published values could not be found, with the reason; ``remembered``
    lists values quoted from memory and not checked against the source, with the confidence (high, medium or low).
    ``differs`` lists how this project differs from the published run.
    """

    name: str
    title: str
    source: Source
    workload: str
    epochs: float
    global_batch_size: int
    results: tuple[Result, ...]
    settings: Mapping[str, Any]
    scaling: Mapping[str, Scaling] = dataclasses.field(default_factory=dict)
    table: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    remembered: Mapping[str, str] = dataclasses.field(default_factory=dict)
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def optimizer(self) -> str:
        """The optimizer's name in :class:`TrainingSettings`."""
        return str(self.settings["optimizer"])

    @property
    def published_batches(self) -> tuple[int, ...]:
        """The global batch sizes of the published training runs, in increasing order."""
        told = {
            each.global_batch_size for each in self.results if each.global_batch_size is not None
        }
        return tuple(sorted({self.global_batch_size, *self.table, *told}))

    @property
    def grows_to(self) -> int | None:
        """The final global batch size under the settings' batch control; None if it is constant or not limited."""
        settings = TrainingSettings.from_dict(self.settings)
        if settings.batch_control == "piecewise":
            return round(self.global_batch_size * max(settings.batch_factors))
        limit = settings.batch_limit_factor if settings.batch_control == "grow" else None
        return None if limit is None else round(self.global_batch_size * limit)

    @property
    def moving(self) -> tuple[str, ...]:
        """The settings that must be tuned again at another batch size, in the order of :class:`TrainingSettings`."""
        names = {
            *self.scaling,
            *(name for row in self.table.values() for name in row),
            *self.unknown,
            *(name for name in BATCH_DEPENDENT if self.settings.get(name)),
        }
        return tuple(name for name in TrainingSettings.__dataclass_fields__ if name in names)

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings that hold at any batch size: all given settings that are not ``moving``."""
        return {name: value for name, value in self.settings.items() if name not in self.moving}

    def settings_at(self, global_batch_size: int, **given: Any) -> TrainingSettings:
        """Return the settings as published for a global batch size; ``given`` values override the published ones.

        Raises :class:`RecipeError` for a batch size that the recipe does not cover, or if no value
        is given for an unknown setting.
        """
        missing = [name for name in self.unknown if name not in given]
        if missing:
            reasons = "; ".join(f"{name}: {self.unknown[name]}" for name in missing)
            raise RecipeError(
                f"recipe {self.name!r} has no published value for {', '.join(missing)} ({reasons}); "
                f"give one: settings_at({global_batch_size}, {missing[0]}=...)"
            )
        return TrainingSettings.from_dict(
            {**self.settings, **self._moved(global_batch_size), **given}
        )

    def published(self, name: str) -> str:
        """Describe how a setting was published: its value and formula, or why it is unknown."""
        if name in self.unknown:
            return f"not known to be published ({self.unknown[name]})"
        rule = f", by the rule {self.scaling[name]}" if name in self.scaling else ""
        return (
            f"{_shown(self.settings[name])} at global batch size {self.global_batch_size:,}{rule}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values for JSON."""
        plain = dataclasses.asdict(self)
        plain["scaling"] = {
            name: {key: value for key, value in rule.items() if value != math.inf}
            for name, rule in plain["scaling"].items()
        }
        plain["table"] = [
            {"global_batch_size": batch, **row} for batch, row in sorted(self.table.items())
        ]
        return plain

    def _moved(self, global_batch_size: int) -> dict[str, Any]:
        if global_batch_size < 1:
            raise RecipeError(
                f"a global batch size must be at least 1, but got {global_batch_size}"
            )
        if self.table and global_batch_size not in self.table:
            raise RecipeError(
                f"recipe {self.name!r} is published at the global batch sizes "
                f"{', '.join(map(str, sorted(self.table)))}, but got {global_batch_size}; use "
                f"one of these, or let a study find the settings for other batch sizes"
            )
        if not self.table and not self.scaling and global_batch_size != self.global_batch_size:
            raise RecipeError(
                f"recipe {self.name!r} is published only at global batch size "
                f"{self.global_batch_size} and has no rule for {global_batch_size}; let a "
                f"study find "
                f"{', '.join(self.moving)} there"
            )
        ruled = {name: rule(global_batch_size) for name, rule in self.scaling.items()}
        whole = {name: round(value) for name, value in ruled.items() if is_whole(name)}
        return {**ruled, **whole, **self.table.get(global_batch_size, {})}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
