"""Support for studies that start from a published recipe: ``recipe: goyal2017``.

The recipe's settings become fixed values of ``search``, except for those that the study's own ``search`` names.
Settings that have no effect alongside the study's own settings are left out. Settings that change with the batch size
(the learning rate, the warmup, and whatever the recipe's own rule or table changes) are never taken from the recipe.
The study tunes them, so that a law can extrapolate them, or gives them a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationInfo

from hpo.study.faults import Location, shown_value
from hpo.study.program import PROGRAM
from search_spaces.recipes import Recipe, RecipeError, recipe
from search_spaces.space import SearchSpace, SearchSpaceError
from search_spaces.techniques import fault_of_use, is_own
from trainers.workloads.described import WORKLOADS

DURATIONS = ("decay_epochs", "decay_milestones", "batch_milestones", "rmsprop_center_epochs")
"""Settings that are points in time after the warmup."""


LONGEST_NAME = 100


def check_recipe(name: str) -> str:
    """Return ``name`` if there is a recipe with that name; otherwise raise ValueError with the nearest name."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"must name a published recipe, but got {shown_value(name)}")
    try:
        recipe(name)
    except RecipeError as error:
        raise ValueError(f"must name a published recipe, but {error}") from error
    return name


def parse_search(search: Any, info: ValidationInfo) -> SearchSpace:
    """Parse a ``search:`` section, starting from the study's recipe; raise ValueError with all faults."""
    name = info.data.get("recipe")
    if isinstance(search, SearchSpace):
        if name is None:
            return search
        search = search.to_plain()
    if not isinstance(search, Mapping):
        raise ValueError(
            f"must be a mapping of settings to values or domains, but got {shown_value(search)}"
        )
    own, inherited = _of_workload(info)
    space = (
        SearchSpace.parse(search, inherited, own)
        if name is None
        else _over(recipe(name), search, own)
    )
    if info.data.get("workload") not in (None, PROGRAM):
        _check_no_own_optimizer(space)
    return space


def _check_no_own_optimizer(space: SearchSpace) -> None:
    for name in space.possible("optimizer"):
        if is_own(name):
            message = (
                f"optimizer {name!r} is known only to your program, so it needs workload: "
                f"program; for another workload write it as a plug-in, one file in your own package"
            )
            raise SearchSpaceError([("optimizer", message)])


def _of_workload(info: ValidationInfo) -> tuple[Collection[str] | None, dict[str, Any]]:
    """Return the custom settings that the study's workload may read (None: any), and the known settings that it fixes.

    A program handles its normalization batch size itself, so its batch sizes need not be multiples of that size.
    """
    workload, program = info.data.get("workload", ""), info.data.get("program")
    if program is not None:
        return program.options.own_settings, {"normalization_batch_size": 1}
    of_a_package = workload in WORKLOADS and workload not in WORKLOADS.built_in
    return (None if ":" in workload or workload == PROGRAM or of_a_package else ()), {}


def own_settings(values: Any) -> frozenset[str]:
    """Return the settings in a study's own ``search``, without those of its recipe."""
    search = values.get("search") if isinstance(values, Mapping) else None
    if isinstance(search, SearchSpace):
        search = search.to_plain()
    return frozenset(map(str, search)) if isinstance(search, Mapping) else frozenset()


def faults_of_durations(
    name: str | None, search: SearchSpace, own: Collection[str], epochs: float
) -> Iterator[tuple[Location, str]]:
    """Yield a fault for each duration in the recipe that exceeds ``epochs``, the budget of a trial."""
    if name is None:
        return
    published = recipe(name)
    for setting in DURATIONS:
        value = search.fixed.get(setting)
        if setting in own or not value or fault_of_use(setting, search.possible) is not None:
            continue
        times = value if isinstance(value, tuple) else (value,)
        if max(times) > epochs or (isinstance(value, tuple) and max(times) == epochs):
            yield ("budget", "epochs_per_trial"), _too_long(published, setting, times, epochs)


def _over(published: Recipe, search: Mapping[str, Any], own: Collection[str] | None) -> SearchSpace:
    faults: list[tuple[str | None, str]] = [
        (name, _not_named(published, name)) for name in published.moving if name not in search
    ]
    space = None
    try:
        space = SearchSpace.parse(search, published.fixed, own)
    except SearchSpaceError as error:
        faults += error.faults
    if space is None or faults:
        raise SearchSpaceError(faults)
    return space


def _not_named(published: Recipe, name: str) -> str:
    return (
        f"{name} changes with the batch size in recipe {published.name!r} "
        f"({published.published(name)}), so search must tune it, such as {name}: {{uniform: "
        f"[low, high], role: scaled}}, or give it a value"
    )


def _too_long(published: Recipe, setting: str, times: tuple[float, ...], epochs: float) -> str:
    shares = [f"{time * epochs / published.epochs:.3g}" for time in times]
    is_list = setting.endswith("milestones")
    published_value, scaled = (
        (f"[{', '.join(map(_number, times))}]", f"[{', '.join(shares)}]")
        if is_list
        else (_number(times[0]), shares[0])
    )
    return (
        f"recipe {published.name!r} is made for {published.epochs:g} epochs and sets {setting} to "
        f"{published_value}, which does not fit in budget.epochs_per_trial {epochs:g}; give "
        f"{setting} in search "
        f"(the same share of the budget is {scaled}), or raise the budget"
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
