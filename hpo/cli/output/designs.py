"""Prints a table of possible sweeps, with the cost of each and the width of its interval at full scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo.cli.output.style import new_console, new_table
from hpo.runs.designs import Design, design_name
from hpo.runs.formatting import format_interval, format_metric_interval, format_number
from hpo.study.sizes import BATCH, sizes_in_words

if TYPE_CHECKING:
    from hpo.runs.designs import Designs


def show_designs(found: Designs) -> None:
    """Print the current study and each choice of sizes and training runs that no cheaper choice matches."""
    sizes = dict(found.full_scale)
    at = ", ".join(
        filter(None, (f"batch {sizes.pop(BATCH):,}", sizes_in_words(tuple(sizes.items()))))
    )
    unit = found.question.unit
    hours = found.own.hours is not None
    table = new_table(
        f"what trainings reveal about {at}",
        "swept up to",
        "trainings",
        "cost in trainings there",
        *(["accelerator hours"] if hours else []),
        f"{unit} (90 % interval)",
        "a factor of",
        "its settings cost",
    )
    for each in found.worthwhile():
        table.add_row(
            f"{design_name(each)}{', this study' if each.own else ''}",
            str(each.trainings),
            format_number(each.cost),
            *([format_number(each.hours)] if hours else []),
            format_metric_interval(each.interval)
            if found.question.fixed
            else format_interval(each.interval),
            f"{each.factor:.3g}",
            f"{100 * each.regret:.2g} %",
        )
    console = new_console()
    console.print(table)
    console.print(design_sentence(found.own, found), markup=False)


def design_sentence(each: Design, found: Designs) -> str:
    """Describe a design, such as ``up to width 64, 40 trainings: 6 accelerator hours, loss within a factor of 1.6``."""
    paid = (
        f"{format_number(each.cost)} trainings at full scale"
        if each.hours is None
        else f"{format_number(each.hours)} accelerator hours"
    )
    return (
        f"up to {design_name(each)}, {each.trainings} trainings: {paid}, {found.question.unit} within a factor of "
        f"{each.factor:.3g}"
    )
