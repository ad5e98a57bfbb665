"""Prints a plan: what to run, the expected time, what limits it, the alternatives and pilot runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.cli.output.style import new_console, new_table
from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.formatting import (
    format_interval,
    format_metric_interval,
    format_number,
    format_percent,
    setting_words,
)
from hpo.study.program import PROGRAM

if TYPE_CHECKING:
    from rich.table import Table

    from hpo.planning.plan import Plan

WIDTH = 100


def show_plan(plan: Plan, folder: Path) -> None:
    """Print a plan at a width of ``WIDTH`` columns."""
    console = new_console()
    if not console.is_terminal or console.width > WIDTH:
        console.width = WIDTH
    for line in _lines(plan):
        console.print(line, markup=False)
    details = plan.details or {}
    if details.get("front"):
        console.print(_front(details["front"], plan.slot_seconds is not None))
    if details.get("trade_offs"):
        console.print(trade_offs_table(details["trade_offs"]))
    for line in (
        *_sensitivity(details.get("sensitivity", ())),
        *_pilot_runs(details.get("pilot_runs", details.get("rehearsal", ()))),
        *details.get("notes", ()),
    ):
        console.print(line, markup=False)
    console.print(
        f"launch it with `hpo launch {plan.id}` or {folder}/launch.sh", markup=False, soft_wrap=True
    )


def plan_duration(seconds: float) -> str:
    """Format a duration in a readable unit: ``42 s``, ``3.5 min``, ``2.25 h``, ``9.1 days``."""
    size, words = _unit(seconds)
    return f"{format_number(seconds / size)} {words}"


def duration_interval(ends: Interval) -> str:
    """Format an interval in the unit of its median: ``2.25 (1.8 to 3.5) h``."""
    size, words = _unit(ends.median)
    return f"{format_interval(Interval(ends.median / size, ends.low / size, ends.high / size))} {words}"


def _unit(seconds: float) -> tuple[float, str]:
    limits = ((0.1, 1e-3, "ms"), (120, 1.0, "s"), (7200, 60.0, "min"), (172800, 3600.0, "h"))
    return next(
        ((size, words) for limit, size, words in limits if seconds < limit), (86400.0, "days")
    )


def _lines(plan: Plan) -> Iterator[str]:
    ranks = (
        _place(plan.nodes, plan.ranks_per_node)
        if plan.nodes > 1
        else _count(plan.workers, "worker")
    )
    yield (
        f"plan {plan.id}: {plan.study} at global batch size {plan.global_batch_size} on {ranks} of "
        f"{plan.machine}, launcher {plan.launcher}"
    )
    micro = (
        f", in {plan.accumulation_steps} micro batches of {plan.micro_batch_size}"
        if plan.accumulation_steps > 1
        else ""
    )
    yield f"each worker takes {plan.local_batch_size} samples per update{micro}"
    yield from _expected(plan)
    yield f"settings: {_settings(plan)}"
    if plan.trust:
        yield f"trust {plan.trust}: {plan.reason}"


def _expected(plan: Plan) -> Iterator[str]:
    details = plan.details or {}
    fixed = plan.job.question.fixed
    if plan.best:
        yield f"{'best ' + plan.best.metric:<18} {format_metric_interval(plan.best.interval)}"
        yield f"epochs             {format_number(plan.best.epochs)}, the budget"
    elif plan.epochs and not fixed:
        yield f"epochs to target   {format_interval(plan.epochs)}"
    time = "time              " if fixed else "time to target    "
    if plan.seconds is None:
        yield (
            f"{time} unknown: the training speed of this workload on this machine is not known; "
            f"give --cost NAME|FILE"
        )
        return
    yield f"{time} {duration_interval(plan.seconds)}"
    if plan.accelerator_hours:
        yield f"accelerator hours  {format_interval(plan.accelerator_hours)}"
    if plan.energy_kwh:
        yield f"energy             {format_interval(plan.energy_kwh)} kWh at the accelerators' rated power"
    if details.get("rate"):
        rate = details["rate"]
        yield f"samples per second {format_interval(Interval(**rate['samples_per_second']))}, from {rate['source']}"
    if plan.slot_seconds is not None and plan.chance_in_slot is not None:
        overhead = details.get("overhead_seconds")
        of_it = (
            f", of which {plan_duration(overhead)} is assumed for startup and staging"
            if overhead
            else ""
        )
        yield f"chance in the slot {plan.chance_in_slot:.0%} within {plan_duration(plan.slot_seconds)}{of_it}"
    if details.get("chance_by_deadline") is not None:
        yield (
            f"deadline           {plan_duration(details['deadline_seconds'])}, met with a chance of "
            f"{details['chance_by_deadline']:.0%} ({details['chance_asked']:.0%} requested)"
        )
    if details.get("failures"):
        found = details["failures"]
        between, saving = (
            plan_duration(3600 * found["hours_between"]),
            plan_duration(60 * found["checkpoint_minutes"]),
        )
        yield (
            f"failures           one every {between} over all nodes: with a checkpoint every {saving} the run takes "
            f"{found['slowdown']:.2f} times as long"
        )
    if details.get("evaluation"):
        found = details["evaluation"]
        yield f"evaluation         {plan_duration(found['seconds'])} each, {found['share']:.0%} of the time"
    if details.get("divergence"):
        yield f"risk of divergence {details['divergence']:.1%}"
    if plan.limited_by:
        shares = sorted(details.get("shares", {}).items(), key=lambda each: -each[1])
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
        yield f"limited by         {plan.limited_by} (the time goes to: {parts})"


def _settings(plan: Plan) -> str:
    from search_spaces.settings import default_of

    values = plan.job.settings.to_dict()
    own = values.pop("own", {})
    always = {"optimizer", "learning_rate", "normalization_batch_size"}
    if plan.job.workload == PROGRAM:
        always.remove("normalization_batch_size")  # a program uses its own normalization
    said = {
        name: value
        for name, value in values.items()
        if name in always or _differs(value, default_of(name))
    } | own
    return ", ".join(
        f"{setting_words(name)} {format_number(value)}" for name, value in said.items()
    )


def _differs(value: Any, default: Any) -> bool:
    return bool(value != (list(default) if isinstance(default, tuple) else default))


def _front(rows: Sequence[Mapping[str, Any]], has_slot: bool) -> Table:
    table = new_table(
        "time against accelerator hours: no plan beats these in both",
        "",
        "nodes",
        "ranks",
        "batch",
        "local",
        "micro",
        "time to target",
        "hours",
        *(["in slot"] if has_slot else []),
    )
    for row in rows:
        mark = ("*" if row["chosen"] else "") + ("+" if row["knee"] else "")
        table.add_row(
            mark,
            format_number(row["nodes"]),
            format_number(row["nodes"] * row["ranks_per_node"]),
            format_number(row["global_batch_size"]),
            format_number(row["local_batch_size"]),
            format_number(row["micro_batch_size"]),
            duration_interval(Interval(**row["seconds_to_target"])),
            format_number(row["accelerator_hours"]),
            *([f"{row['chance_in_slot']:.0%}"] if has_slot else []),
        )
    table.caption = "* this plan; + the fewest hours within 10 % of the fastest"
    table.caption_justify = "left"
    return table


def trade_offs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the Pareto front of time, hours and epochs (or the metric of a fixed budget), one row per plan."""
    metric = next((row["metric"] for row in rows if row.get("metric")), None)
    names = sorted({name for row in rows for name in row["settings"]})
    table = new_table(
        f"time, accelerator hours and {metric or 'epochs'} over all batch sizes: nothing beats these in all three",
        "batch",
        "nodes",
        "ranks",
        *names,
        "time",
        "hours",
        metric or "epochs",
        "lost",
        "",
    )
    for row in rows:
        need = Interval(**row["best" if metric else "epochs_to_target"])
        table.add_row(
            format_number(row["global_batch_size"]),
            format_number(row["nodes"]),
            format_number(row["workers"]),
            *(format_number(row["settings"].get(name)) for name in names),
            plan_duration(row["seconds_to_target"]["median"]),
            format_number(row["accelerator_hours"]),
            format_metric_interval(need) if metric else format_number(need.median),
            format_percent(row["divergence"]),
            ", ".join(row["marks"]),
        )
    return table


def _sensitivity(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if changes:
        yield "what if: " + "; ".join(
            f"{each['what']}: time x{each['time']:.2f}, hours x{each['accelerator_hours']:.2f}"
            for each in changes
        )


def _pilot_runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for place, run in enumerate(runs, 1):
        yield (
            f"pilot run {place}, {run['checks']} ({run['share_of_variance']:.0%} of the uncertainty): "
            f"{_place(run['nodes'], run['ranks_per_node'])}, batch {run['global_batch_size']}, "
            f"{run['steps']} steps, {format_number(float(run['accelerator_hours']))} accelerator hours; expect "
            f"{format_interval(Interval(**run['expected']))} {run['quantity']}; "
            f"{run['overturned_by']} would overturn the "
            "plan"
        )


def _place(nodes: int, ranks_per_node: int) -> str:
    return f"{_count(nodes, 'node')} x {_count(ranks_per_node, 'rank')}"


def _count(number_of: int, what: str) -> str:
    return f"{number_of} {what}" if number_of == 1 else f"{number_of} {what}s"
