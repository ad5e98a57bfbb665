"""Prints published recipes on stdout: one line each, or a single recipe in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hpo.cli.output.style import new_console, new_table
from hpo.runs.formatting import format_number, setting_words
from search_spaces.recipes import PROVENANCE, Recipe, Result

RECALLED = {
    "high": "recalled, cross-checked against other figures",
    "medium": "recalled, not checked",
    "low": "recalled, doubtful",
}


def show_recipes(found: Sequence[Recipe]) -> None:
    """Print a table of recipes."""
    table = new_table("recipes", "name", "workload", "optimizer", "batch sizes", "result", "source")
    for each in found:
        table.add_row(
            each.name,
            Text(each.workload),
            each.optimizer,
            recipe_batches(each),
            Text(_headline(each)),
            Text(_source(each)),
        )
    console = new_console()
    console.print(table)
    console.print(
        "`hpo recipes NAME` shows a recipe with its settings; `recipe: NAME` in a study file "
        "starts from that recipe"
    )


def show_recipe(each: Recipe) -> None:
    """Print all data of one recipe."""
    console = new_console()
    console.print(Text(f"{each.name}: {each.title}", style="bold"))
    arxiv = f"arXiv:{each.source.arxiv}" if each.source.arxiv else ""
    read = f"read for this recipe: {each.source.checked}" if each.source.checked else ""
    paper = ", ".join(filter(None, (each.source.paper, arxiv, each.source.section)))
    for line in filter(
        None, (f"{each.workload}, {each.epochs:g} epochs", paper, each.source.repository, read)
    ):
        console.print(Text(line))
    console.print(_results(each))
    console.print(_settings(each))
    if each.table:
        console.print(_points(each))
    for title, lines in (("what differs here", each.differs), ("notes", each.notes)):
        if lines:
            console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"  - {line}"))


def recipe_batches(each: Recipe) -> str:
    """Return the published batch sizes, or their range if there are many; with growing batches, add the last one."""
    published = [format_number(batch) for batch in each.published_batches]
    text = ", ".join(published) if len(published) <= 3 else f"{published[0]} to {published[-1]}"
    return f"{text} -> {format_number(each.grows_to)}" if each.grows_to else text


def _headline(each: Recipe) -> str:
    """Return the result at the recipe's own batch size, or the first result if there is none."""
    at_own = [
        result for result in each.results if result.global_batch_size == each.global_batch_size
    ]
    return _in_words((at_own or list(each.results))[0])


def _in_words(result: Result) -> str:
    text = (f"{result.value:.4g} {result.metric}", result.time, result.hardware)
    return ", ".join(filter(None, text))


def _source(each: Recipe) -> str:
    arxiv = f"arXiv:{each.source.arxiv}" if each.source.arxiv else ""
    return arxiv or (each.source.repository or "").removeprefix("https://").split("/blob/")[0]


def _results(each: Recipe) -> Any:
    table = new_table(
        "published results", "batch size", "metric", "value", "hardware", "time", "source", "note"
    )
    for result in each.results:
        table.add_row(
            format_number(result.global_batch_size),
            result.metric,
            f"{result.value:.4g}",
            result.hardware or "",
            result.time or "",
            Text(PROVENANCE[result.provenance]),
            Text(result.note or ""),
        )
    return table


def _settings(each: Recipe) -> Any:
    table = new_table(
        f"settings at global batch size {format_number(each.global_batch_size)}",
        "setting",
        "value",
        "with the batch size",
        "confidence",
    )
    for name, value in each.settings.items():
        moves = (
            str(each.scaling[name])
            if name in each.scaling
            else "see the table"
            if _in_table(each, name)
            else "to be found"
            if name in each.moving
            else ""
        )
        table.add_row(
            setting_words(name),
            _value(value),
            moves,
            RECALLED.get(each.remembered.get(name, ""), ""),
        )
    for name, reason in each.unknown.items():
        table.add_row(setting_words(name), "unknown", "to be found", Text(reason))
    return table


def _points(each: Recipe) -> Any:
    names = list(next(iter(each.table.values())))
    table = new_table("published points", "batch size", *names)
    for batch, row in sorted(each.table.items()):
        table.add_row(format_number(batch), *(_value(row[name]) for name in names))
    return table


def _in_table(each: Recipe, name: str) -> bool:
    return any(name in row for row in each.table.values())


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"{entry:.4g}" for entry in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else format_number(value)
