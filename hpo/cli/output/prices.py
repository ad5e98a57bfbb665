"""Describes the expected cost of a study in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpo.runs.formatting import format_target
from hpo.study.sizes import full_scale_sizes, rung_in_words

if TYPE_CHECKING:
    from hpo.study.price import StudyPrice
    from hpo.study.spec import StudySpec


def show_check(file: Path, spec: StudySpec, price: StudyPrice | None) -> None:
    """Print the result of checking a valid study file."""
    aim = format_target(spec.target.metric, spec.target.threshold, spec.target.higher_is_better)
    until = (
        f"for the {aim} in {spec.question.epochs:g} epochs"
        if spec.question.fixed
        else f"until {aim}"
    )
    ladder = ", ".join(map(str, spec.ladder))
    for name, sizes in spec.sizes.items():
        ladder += f", {name} {', '.join(map(str, sizes))}"
    full = (
        f", forecast at {rung_in_words(spec.full_scale.global_batch_size, full_scale_sizes(spec))}"
        if spec.full_scale
        else ""
    )
    click.echo(f"{file} is a study: {spec.name}, {spec.workload} {until}, at batch {ladder}{full}")
    if price is None:
        click.echo(
            "only the file was checked: checking the data and estimating the cost need torch; "
            "pip install 'largebatch[train]'"
        )
        return
    for line in lines(price, spec):
        click.echo(line)


def lines(price: StudyPrice, spec: StudySpec) -> Iterator[str]:
    """Yield the expected cost, one sentence per line."""
    asked = f"{price.trials} trials"
    if spec.budget.ends_by_itself:
        asked = f"a search that stops by itself, after at most {asked}"
    yield (
        f"sweep: {asked}, each at most {price.epochs_per_trial:g} epochs of {price.train_samples:,} "
        f"samples, at most {price.sweep_samples:,} samples"
    )
    full = spec.full_scale
    if full is not None and price.race_samples:
        yield f"race at {full.global_batch_size}: at most {price.race_samples:,} samples, if it is worth its cost"
    if full is not None and full.validate_plan:
        from hpo.runs.run import LEAST_SEEDS

        yield (
            f"validation: {max(LEAST_SEEDS, spec.seeds)} runs at {full.global_batch_size} "
            f"with the forecast's settings, and as many with each rule of thumb that differs "
            f"from it"
        )
    if price.sweep_seconds is None:
        yield f"hours: unknown; {price.reason}"
        return
    yield (
        f"here: {price.trials_at_once} trials at a time; the sweep takes at most {_duration(price.sweep_seconds)}"
        + (f", the race {_duration(price.race_seconds)}" if price.race_seconds else "")
        + (
            "; trials that fall behind"
            if spec.question.fixed
            else "; trials that reach the target or fall behind"
        )
        + " end earlier"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.3g} hours"
