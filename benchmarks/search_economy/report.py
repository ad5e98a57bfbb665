"""The tables and the plot: mean regret at each spend, lost runs, and where searches end by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.extrapolation.svg import Picture

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#d62728")

Row = dict[str, Any]
"""One search as a line of JSON: case, method, seed, and the regret and losses by spend."""


def lines(rows: Sequence[Row], spends: Sequence[float]) -> Iterator[str]:
    """Yield all tables in Markdown, over the searches that every method has finished."""
    rows = paired(rows)
    cases, methods = _unique(rows, "case"), _unique(rows, "method")
    if not rows:
        yield "No search has been finished by every method."
        return
    count = len({(row["case"], row["seed"]) for row in rows})
    heads = " | ".join(f"{spend:g}" for spend in spends)
    yield (
        f"{len(cases)} cases, {count} searches of each method. Mean regret +- standard error over cases, by what was "
        "spent in trainings at the target with the best settings:"
    )
    yield ""
    yield f"| search | {heads} | ends by itself: share, after, regret |"
    yield f"|---|{'---|' * len(spends)}---|"
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        cells = " | ".join(_mean(own, cases, str(spend), "regret") for spend in spends)
        yield f"| {method} | {cells} | {_ending(own)} |"
    yield ""
    yield f"| runs expected lost | {heads} |"
    yield f"|---|{'---|' * len(spends)}"
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        cells = " | ".join(
            f"{np.mean([row['lost'][str(spend)] for row in own]):.1%}" for spend in spends
        )
        yield f"| {method} | {cells} |"
    for case in cases:
        yield ""
        optimum = next(row["optimum"] for row in rows if row["case"] == case)
        yield f"| {case}, {optimum:.3g} epochs at best | {heads} |"
        yield f"|---|{'---|' * len(spends)}"
        for method in methods:
            own = [row for row in rows if row["method"] == method and row["case"] == case]
            cells = " | ".join(_mean(own, [case], str(spend), "regret") for spend in spends)
            yield f"| {method} | {cells} |"


def picture(rows: Sequence[Row], spends: Sequence[float]) -> str:
    """Draw the ratio of epochs to the optimum (geometric mean over cases) against spending, as SVG."""
    rows = paired(rows)
    methods = _unique(rows, "method")
    curves = {
        method: [
            math.exp(
                max(
                    float(
                        np.mean(
                            [row["regret"][str(spend)] for row in rows if row["method"] == method]
                        )
                    ),
                    0.001,
                )
            )
            for spend in spends
        ]
        for method in methods
    }
    most = max((max(curve) for curve in curves.values()), default=2.0)
    shown = Picture(
        "spent, in trainings at the target batch with the best settings",
        "epochs over the fewest",
        (min(spends), max(spends)),
        (1.0, most * 1.1),
        legend="top right",
    )
    for number, (method, curve) in enumerate(curves.items()):
        shown.line(list(spends), curve, COLOURS[number % len(COLOURS)], method)
    return shown.text()


def paired(rows: Sequence[Row]) -> list[Row]:
    """Return the searches of cases and seeds that every method of ``rows`` has finished, for comparable means."""
    methods = set(_unique(rows, "method"))
    done: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        done.setdefault((row["case"], row["seed"]), set()).add(row["method"])
    return [row for row in rows if done[row["case"], row["seed"]] == methods]


def _mean(rows: Sequence[Row], cases: Sequence[str], spend: str, what: str) -> str:
    """Return the mean over all searches; the standard error is over cases, or over the searches of one case."""
    by_case = [
        float(np.mean([row[what][spend] for row in rows if row["case"] == case])) for case in cases
    ]
    values = by_case if len(cases) > 1 else [float(row[what][spend]) for row in rows]
    if len(values) < 2:
        return f"{np.mean(values):.2f}"
    return f"{np.mean(values):.2f} +- {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}"


def _ending(rows: Sequence[Row]) -> str:
    ended = [row for row in rows if row["ended"]]
    if not ended:
        return "-"
    spent = float(np.median([row["spent"] for row in ended]))
    return (
        f"{len(ended) / len(rows):.0%}, {spent:.1f} (median), "
        f"{np.mean([row['end_regret'] for row in ended]):.2f}"
    )


def _unique(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))
