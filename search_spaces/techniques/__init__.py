"""Techniques: the optimizers and schedules that a trial may use, and the settings that each reads.

Each setting that chooses a technique (``optimizer``, ``decay``, ``warmup_shape``, ``batch_control``) has a registry of
descriptions, including those of plug-ins. The extra settings of techniques are stored and shown next to the known
settings, like the custom settings of a workload.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from search_spaces.own_settings import OwnSetting
from search_spaces.plugins import PluginError, PluginRegistry
from search_spaces.techniques.optimizers import (
    OF_LOOP,
    OPTIMIZERS,
    OWN,
    OptimizerDescription,
    described_optimizer,
    is_own,
)
from search_spaces.techniques.schedules import BATCH_CONTROLS, DECAYS, WARMUP_SHAPES
from search_spaces.techniques.technique import Technique, Use, listed_words

__all__ = [
    "BATCH_CONTROLS",
    "DECAYS",
    "OF_LOOP",
    "OPTIMIZERS",
    "OWN",
    "TECHNIQUES",
    "WARMUP_SHAPES",
    "OptimizerDescription",
    "Technique",
    "Use",
    "chosen",
    "described_optimizer",
    "fault_of_replaced",
    "fault_of_use",
    "is_own",
    "own_setting_named",
    "own_settings_of",
    "uses_of",
]

TECHNIQUES: Mapping[str, PluginRegistry[Any]] = {
    "optimizer": OPTIMIZERS,
    "warmup_shape": WARMUP_SHAPES,
    "decay": DECAYS,
    "batch_control": BATCH_CONTROLS,
}
"""The registries of descriptions, by the setting that chooses among them."""

ValuesOf = Callable[[str], Collection[Any]]
"""A function that returns the values that a setting may take, given its name."""

_DECAYS = (Use("weight_decay"), Use("weight_decay_epochs"))
_WARMUP = Use("warmup_epochs")
_SERVED = Use("update_mode", ("asynchronous", "stale_synchronous"))
_OTHERS: dict[str, tuple[Use, ...]] = {
    "decay_norm_and_bias": _DECAYS,
    "decay_bias": _DECAYS,
    "warmup_shape": (_WARMUP,),
    "warmup_start_factor": (_WARMUP,),
    "reduced_weights": (Use("precision", ("bf16", "fp16")),),
    "loss_scale": (Use("loss_scaling", ("static", "dynamic")),),
    "loss_scale_growth_updates": (Use("loss_scaling", ("dynamic",)),),
    "asynchronous_workers": (_SERVED,),
    "staleness_bound": (Use("update_mode", ("stale_synchronous",)),),
    "epoch_quorum": (Use("update_mode", ("asynchronous",)),),
}
"""Settings that only take effect with certain values of other settings; any one of the listed conditions suffices."""
_INSTEAD = {"weight_decay": "weight_decay_epochs"}
"""Settings that have no effect if another setting, which the optimizer reads instead, is given."""


def chosen(values_of: ValuesOf) -> Iterator[tuple[str, str, Technique]]:
    """Yield every technique that may be chosen: its setting, name and description; faulty plug-ins are left out."""
    for setting, registry in TECHNIQUES.items():
        for name in values_of(setting):
            try:
                if name in registry:
                    yield setting, name, registry[name]
            except PluginError:
                continue


def own_settings_of(values_of: ValuesOf) -> dict[str, OwnSetting]:
    """Return the extra settings of the techniques that may be chosen, by name."""
    found: dict[str, OwnSetting] = {}
    for _, _, technique in chosen(values_of):
        found.update(technique.settings)
    return found


def own_setting_named(name: str) -> OwnSetting | None:
    """Return the description of an extra setting that some technique reads; None if no technique does."""
    for registry in TECHNIQUES.values():
        for technique in registry:
            try:
                settings = registry[technique].settings
            except PluginError:
                continue
            if name in settings:
                found: OwnSetting = settings[name]
                return found
    return None


def uses_of(name: str, values_of: ValuesOf | None = None) -> tuple[Use, ...]:
    """Return the conditions under which ``name`` has an effect: any one suffices; without any, it always has an effect.

    They cover the built-in techniques and the plug-ins that may be chosen (``values_of``).
    """
    uses: list[Use] = []
    possible = list(chosen(values_of)) if values_of else []
    for setting, registry in TECHNIQUES.items():
        named = {each: technique for its, each, technique in possible if its == setting}
        known: dict[str, Technique] = {**registry.built_in, **named}
        plain = tuple(each for each, it in known.items() if name in (*it.uses, *it.settings))
        if plain:
            uses.append(Use(setting, plain))
        uses += [
            Use(setting, (each,), it.uses_if[name])
            for each, it in known.items()
            if name in it.uses_if
        ]
    return (*uses, *_OTHERS.get(name, ()))


def fault_of_use(name: str, values_of: ValuesOf) -> str | None:
    """Return why ``name`` has no effect with any possible values of the other settings; None if it can have one."""
    uses = uses_of(name, values_of)
    hindrances = [[*use.hindrances(values_of)] for use in uses]
    if not all(hindrances) or not uses:
        return None
    others = dict.fromkeys(other for each in hindrances for other in each)
    found = " and ".join(
        f"{other} {listed_words(tuple(map(_shown, values_of(other))))}" for other in others
    )
    return f"has no effect with {found}; it is used with {', or with '.join(map(str, uses))}"


def fault_of_replaced(name: str, values_of: ValuesOf) -> str | None:
    """Return why ``name`` has no effect because another setting is always read instead of it; None if it can have one.

    Unlike :func:`fault_of_use`, this is no fault of a stored study.
    """
    instead = _INSTEAD.get(name)
    if instead is None or not _is_always_given(instead, values_of):
        return None
    given = listed_words(tuple(map(_shown, values_of(instead))))
    return f"has no effect with {instead} {given}; it is used with {instead} null"


def _is_always_given(name: str, values_of: ValuesOf) -> bool:
    """Return whether every optimizer that may be chosen reads the setting ``name``, and its value is never null."""
    optimizers = [it for setting, _, it in chosen(values_of) if setting == "optimizer"]
    reads = bool(optimizers) and all(name in it.settings for it in optimizers)
    return reads and None not in values_of(name)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
