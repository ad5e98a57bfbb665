"""Loads recipes, each of which is one YAML file in this folder and is checked when it is loaded.

A row of ``table`` may give durations in updates and the final rate as an absolute value, as published. Durations are
converted to epochs with ``train_samples``::

    warmup_steps                -> warmup_epochs
    decay_milestone_steps       -> decay_milestones
    decay_steps                 -> decay_epochs, counted from the first update
    decay_steps_after_warmup    -> decay_epochs, counted from the end of the warmup
    end_learning_rate           -> end_learning_rate_factor, over the row's learning_rate
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import yaml

from search_spaces.recipes.recipe import PROVENANCE, Recipe, RecipeError, Result, Scaling, Source
from search_spaces.settings import SettingError, TrainingSettings, check_name

CONFIDENCE = ("high", "medium", "low")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEYS = {field.name for field in dataclasses.fields(Recipe)} | {"train_samples"}


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all recipes, in alphabetical order."""
    folder = resources.files("search_spaces.recipes")
    return tuple(
        sorted(
            file.name.removesuffix(".yaml")
            for file in folder.iterdir()
            if file.name.endswith(".yaml")
        )
    )


@functools.cache
def recipe(name: str) -> Recipe:
    """Return the recipe of this name; raise :class:`RecipeError` with the closest name if there is none."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the recipes are {', '.join(names())}"
        raise RecipeError(f"there is no recipe {name!r}; {hint}")
    text = (
        resources.files("search_spaces.recipes")
        .joinpath(f"{name}.yaml")
        .read_text(encoding="utf-8")
    )
    return parse_recipe(text, name)


def recipes() -> tuple[Recipe, ...]:
    """Return all recipes, sorted by name."""
    return tuple(recipe(name) for name in names())


def parse_recipe(text: str, name: str) -> Recipe:
    """Parse a recipe from YAML text; raise :class:`RecipeError` with the reason if it is invalid."""
    try:
        return _recipe(yaml.load(text, Loader=_LOADER), name)
    except (yaml.YAMLError, SettingError, TypeError, KeyError) as error:
        raise RecipeError(f"recipe {name!r}: {error}") from error


def _recipe(values: Any, name: str) -> Recipe:
    if not isinstance(values, Mapping) or values.get("name") != name:
        raise RecipeError(f"the file must hold a recipe that has the file's name, {name!r}")
    _check_keys(values, _KEYS, "a recipe")
    plain: dict[str, Any] = dict(values)
    samples = plain.pop("train_samples", None)
    made = Recipe(
        **{
            **plain,
            "source": _section(Source, plain["source"], "source"),
            "results": tuple(_result(each) for each in plain["results"]),
            "scaling": {
                key: _section(Scaling, rule, f"scaling.{key}")
                for key, rule in plain.get("scaling", {}).items()
            },
            "table": dict(_row(row, samples) for row in plain.get("table", [])),
            "differs": tuple(plain.get("differs", ())),
            "notes": tuple(plain.get("notes", ())),
        }
    )
    if made.table and made.global_batch_size not in made.table:
        raise RecipeError(
            f"global_batch_size must be one of the batch sizes in the table, but got {made.global_batch_size}"
        )
    made = dataclasses.replace(
        made, settings={**made.settings, **made.table.get(made.global_batch_size, {})}
    )
    _check(made)
    return made


def _result(values: Any) -> Result:
    result: Result = _section(Result, values, "results")
    if result.provenance not in PROVENANCE:
        raise RecipeError(
            f"provenance must be one of {', '.join(PROVENANCE)}, but got {result.provenance!r}"
        )
    return result


def _row(values: Mapping[str, Any], train_samples: int | None) -> tuple[int, dict[str, Any]]:
    row = dict(values)
    batch = int(row.pop("global_batch_size"))

    def epochs(steps: float) -> float:
        if train_samples is None:
            raise RecipeError(
                "durations in updates need train_samples, the size of the training set"
            )
        return steps * batch / train_samples

    if "warmup_steps" in row:
        row["warmup_epochs"] = epochs(row.pop("warmup_steps"))
    if "decay_milestone_steps" in row:
        row["decay_milestones"] = [epochs(steps) for steps in row.pop("decay_milestone_steps")]
    if "decay_steps" in row:
        row["decay_epochs"] = epochs(row.pop("decay_steps"))
    if "decay_steps_after_warmup" in row:
        row["decay_epochs"] = row["warmup_epochs"] + epochs(row.pop("decay_steps_after_warmup"))
    if "end_learning_rate" in row:
        row["end_learning_rate_factor"] = row.pop("end_learning_rate") / row["learning_rate"]
    return batch, row


def _check(made: Recipe) -> None:
    """Check that every name is a setting and that the settings are compatible at every published batch size."""
    for name in (*made.settings, *made.scaling, *made.unknown, *made.remembered):
        check_name(name)
    for name, confidence in made.remembered.items():
        if confidence not in CONFIDENCE:
            raise RecipeError(
                f"remembered.{name} must be one of {', '.join(CONFIDENCE)}, but got {confidence!r}"
            )
    defaults = TrainingSettings().to_dict()
    filled = {name: defaults[name] for name in made.unknown}
    for batch in made.table or (made.global_batch_size,):
        made.settings_at(batch, **filled)


def _section(kind: Any, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where} must be a mapping, but got {values!r}")
    _check_keys(values, [field.name for field in dataclasses.fields(kind)], where)
    return kind(**values)


def _check_keys(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = sorted(known)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
            raise RecipeError(f"unknown key {key!r} in {where}; {hint}")
