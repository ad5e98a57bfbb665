"""The table of docs/reference/recipes.md, which gives the source of every number, against the recipes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from search_spaces.recipes import Recipe, recipe, recipes
from search_spaces.settings import TrainingSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recipes.md"
TRAIN_SAMPLES = {"mlperf_deepcam_lamb": 121_266}
IMAGENET = 1_281_167
PLACES = (
    "arXiv:",
    "mlcommons/",
    "tensorflow/tpu: ",
    "azrael417/ClimDeepLearn: ",
    "LARS-ImageNet-PyTorch: ",
    "RMSpropWarmup",
    "a published summary of arXiv:",
    "recalled, ",
    "calculated: ",
    "this project: ",
    "not in ",
)


@dataclass(frozen=True)
class Row:
    """One row: settings with their values as text, and where they stand; no batch sizes: all of the recipe's own."""

    recipe: str
    batches: tuple[int, ...]
    settings: dict[str, str]
    where: str


def rows() -> Iterator[Row]:
    section = (
        PAGE.read_text(encoding="utf-8")
        .split("## Where every number stands")[1]
        .split("### Not included")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    for line in lines:
        name, batches, settings, where = (cell.strip() for cell in line.strip("|").split("|"))
        listed = (
            own_batches(recipe(name)) if batches == "any" else tuple(map(int, batches.split(",")))
        )
        yield Row(
            name, listed, dict(each.strip().split(" ", 1) for each in settings.split(";")), where
        )


def own_batches(published: Recipe) -> tuple[int, ...]:
    return tuple(published.table) or (published.global_batch_size,)


def number(text: str, samples_per_update: float) -> float:
    """A sum of numbers, each without a unit, in epochs, or in updates, which become epochs."""
    terms = [(float(term.split()[0]), term.split()[1:]) for term in text.split(" + ")]
    return sum(each * (samples_per_update if unit == ["updates"] else 1.0) for each, unit in terms)


def value(text: str, name: str, batch: int, settings: TrainingSettings) -> Any:
    """What a cell's text stands for, in the setting's own unit; a unit behind the last of several numbers is of all."""
    if text in ("true", "false"):
        return text == "true"
    if text.endswith(" / learning_rate"):
        return float(text.split(" / ", maxsplit=1)[0]) / settings.learning_rate
    if not text[0].isdigit():
        return text
    *others, last = text.split(", ")
    unit = f" {last.split()[-1]}" if last.endswith((" updates", " epochs")) else ""
    numbers = tuple(
        number(each, batch / TRAIN_SAMPLES.get(name, IMAGENET))
        for each in (*(f"{other}{unit}" for other in others), last)
    )
    return numbers if others else numbers[0]


ROWS = list(rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.recipe} {' '.join(row.settings)}"[:80])
def test_a_row_has_the_recipes_values_and_says_where_they_stand(row: Row) -> None:
    published = recipe(row.recipe)
    unknown = {name: getattr(TrainingSettings(), name) for name in published.unknown}
    assert row.where.startswith(PLACES)
    for batch in row.batches:
        settings = published.settings_at(batch, **unknown)
        for name, text in row.settings.items():
            if name in published.unknown:
                assert text == "unknown"
                continue
            told, mine = value(text, row.recipe, batch, settings), getattr(settings, name)
            if isinstance(mine, tuple) and not isinstance(told, tuple):
                told = (told,)
            assert mine == (
                told if isinstance(told, (str, bool)) else pytest.approx(told, rel=1e-9)
            ), (batch, name)


@pytest.mark.parametrize("published", recipes(), ids=lambda each: each.name)
def test_every_setting_of_a_recipe_has_its_row(published: Recipe) -> None:
    for batch in own_batches(published):
        found = [
            name
            for row in ROWS
            if row.recipe == published.name and batch in row.batches
            for name in row.settings
        ]
        named = {*published.settings, *published.table.get(batch, {}), *published.unknown}
        assert sorted(found) == sorted(named), batch


@pytest.mark.parametrize("published", recipes(), ids=lambda each: each.name)
def test_what_is_recalled_is_what_the_recipe_says_is_recalled(published: Recipe) -> None:
    told = {
        name: row.where.removeprefix("recalled, ")
        for row in ROWS
        if row.recipe == published.name
        for name in row.settings
        if row.where.startswith("recalled, ")
    }
    assert told == dict(published.remembered)
    for row in ROWS:
        if row.recipe == published.name and not row.where.startswith("recalled, "):
            assert not set(row.settings) & set(published.remembered), row
