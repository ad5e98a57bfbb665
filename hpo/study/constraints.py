"""The section ``constraints``: bounds that a training run must meet, besides its target, for its settings to be usable.

An example is ``constraints: {memory_gb: {at_most: 16}, top5: {at_least: 0.9}}``. Constraints may bound the peak memory
and the seconds per sample of any run that reports them, and the value at the last evaluation of every metric of the
workload except the target metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpo.study.faults import Location, SpecFaultsError, shown_value
from hpo.study.program import ProgramSection
from search_spaces.names import did_you_mean
from trainers.job import MEMORY, PACE, Constraint

MOST = 20
BOUNDS = ("at_most", "at_least")
OF_ANY = (MEMORY, PACE)
"""The measurements of a training run besides its metrics."""


def parse_constraints(values: Any) -> tuple[Constraint, ...]:
    """Parse a study file's mapping of constraints; raise :class:`SpecFaultsError` with every fault and its location."""
    if isinstance(values, tuple) and all(isinstance(each, Constraint) for each in values):
        return values
    if not isinstance(values, Mapping):
        raise ValueError(
            f"must be a mapping, such as {{{MEMORY}: {{at_most: 16}}}}, but got {shown_value(values)}"
        )
    if len(values) > MOST:
        raise ValueError(f"must be at most {MOST}, but got {len(values)}")
    found, faults = [], list[tuple[Location, str]]()
    for name, bound in values.items():
        fault = _fault(name, bound)
        if fault:
            faults.append(((str(name),), f"constraints.{name}{fault}"))
        else:
            ((kind, value),) = bound.items()
            found.append(Constraint(str(name), float(value), kind == "at_most"))
    if faults:
        raise SpecFaultsError(faults)
    return tuple(found)


def to_plain(constraints: Sequence[Constraint]) -> dict[str, dict[str, float]]:
    """Return the constraints in the form that a study file uses."""
    return {each.name: {BOUNDS[not each.at_most]: each.bound} for each in constraints}


def faults_of_constraints(
    constraints: Sequence[Constraint],
    metric: str,
    program: ProgramSection | None,
    *,
    fused: bool,
    asynchronous: bool,
    sizes: bool = False,
) -> Iterator[tuple[Location, str]]:
    """Yield the faults that the study file alone reveals: constraints that its trials cannot measure.

    ``metric`` is the target metric; ``sizes`` says whether anything besides the batch size varies over the ladder.
    """
    if sizes and constraints:
        yield (
            ("constraints",),
            "constraints need trials with the model and length of the forecast, but this "
            "ladder has smaller ones; leave constraints out, or give the ladder as a list of "
            "batch sizes",
        )
    for each in constraints:
        place = ("constraints", each.name)
        if each.name == metric:
            yield (
                place,
                f"constraints.{each.name} must not be the target's metric, which target itself bounds; leave it out",
            )
        elif each.name == MEMORY and program is None and (fused or asynchronous):
            which = "resources.fused_trials" if fused else "update_mode asynchronous"
            yield (
                place,
                f"constraints.{MEMORY} must be measured for each trial, but with {which} "
                f"trials share their memory; leave one of the two out",
            )
        elif program is not None:
            yield from _faults_of_program(each, program)


def faults_of_metrics(
    constraints: Sequence[Constraint], workload: str, metrics: Mapping[str, bool], *, memory: bool
) -> Iterator[tuple[Location, str]]:
    """Yield the faults that depend on the workload: metrics that it does not measure, and bounds in the wrong
    direction; ``memory`` says whether it reports its memory use.
    """
    for each in constraints:
        place = ("constraints", each.name)
        if each.name == MEMORY and not memory:
            yield (
                place,
                f"constraints.{MEMORY} must be measured, but workload {workload!r} runs in "
                f"the memory of the sweep process and reports none; leave it out",
            )
        elif each.name not in OF_ANY and each.name not in metrics:
            known = (*OF_ANY, *metrics)
            yield (
                place,
                f"constraints must name what workload {workload!r} reports "
                f"({', '.join(sorted(known))}), but got "
                f"{shown_value(each.name)}{did_you_mean(each.name, known)}",
            )
        elif each.name in metrics and metrics[each.name] == each.at_most:
            right, wrong = (BOUNDS[1], BOUNDS[0]) if each.at_most else BOUNDS
            better = "higher" if each.at_most else "lower"
            yield (
                place,
                f"constraints.{each.name}.{right} must be used with {each.name}, which is better when {better}, but "
                f"got {wrong}",
            )


def _fault(name: Any, bound: Any) -> str:
    """Return the text of the fault in one constraint, to be appended to its name."""
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        return " must be a name of 1 to 100 characters"
    if not isinstance(bound, Mapping):
        return f" must be a mapping, such as {{at_most: 16}}, but got {shown_value(bound)}"
    unknown = next((key for key in bound if key not in BOUNDS), None)
    if unknown is not None:
        hint = did_you_mean(str(unknown), BOUNDS) or f"; the keys are {', '.join(BOUNDS)}"
        return f" has the unknown key {shown_value(unknown)}{hint}"
    return _fault_of_bound(name, bound)


def _fault_of_bound(name: str, bound: Mapping[str, Any]) -> str:
    if len(bound) != 1:
        return f" must have exactly one of at_most and at_least, but got {'both' if bound else 'neither'}"
    ((kind, value),) = bound.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f".{kind} must be a finite number, but got {shown_value(value)}"
    if name in OF_ANY and (kind != "at_most" or value <= 0):
        what = "gigabytes" if name == MEMORY else "seconds"
        return f" must be at_most a number of {what} above 0, but got {kind} {value:g}"
    return ""


def _faults_of_program(
    constraint: Constraint, program: ProgramSection
) -> Iterator[tuple[Location, str]]:
    options = program.options
    place = ("constraints", constraint.name)
    yield from faults_of_metrics([constraint], "program", options.metrics, memory=True)
    pattern = options.report.pattern
    if constraint.name == PACE or pattern is None:
        return
    groups = re.compile(pattern).groupindex
    if constraint.name in (MEMORY, *options.metrics) and constraint.name not in groups:
        yield (
            place,
            f"constraints.{constraint.name} must be reported, but program.report.pattern has no group "
            f"(?P<{constraint.name}>...): add one, or have the program report it with hpo.report",
        )
