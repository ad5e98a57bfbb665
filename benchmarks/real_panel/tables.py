"""The tables of the panel, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.real_panel import trainings
from benchmarks.real_panel.cases import TIMES, Case
from benchmarks.real_panel.recommendations import FORECAST, FORECASTS, METHODS, Recommended
from benchmarks.real_panel.scores import (
    Held,
    Mean,
    Score,
    looked_up,
    mean_over_sweeps,
    optimum,
    over_forecast,
    promises,
    scores,
)
from benchmarks.real_panel.trainings import Trainings

RATE_FACTOR, WARMUP_FACTOR = 1.3, 1.6
"""Factors around their median within which recommendations of repeated sweeps count as equal."""


def lines(
    cases: Sequence[Case],
    recommended: Mapping[str, Sequence[Recommended]],
    held: Trainings,
    known: Sequence[Case],
    *,
    lookup: bool = False,
) -> Iterator[str]:
    """Return all tables of ``cases``; ``known`` are all cases, in which the optimum of a reference case is looked up.

    With ``lookup``, recommendations are scored by nearby runs and need no runs of their own.
    """
    found = [
        score
        for case in cases
        for score in (
            looked_up(case, recommended[case.name], held)
            if lookup
            else scores(case, recommended[case.name], held, known)
        )
    ]
    kept = [each for case in cases for each in promises(case, recommended[case.name], held)]
    sections = (
        _methods(found),
        _cases(cases, found, held, known),
        _intervals(cases, kept),
        _races(cases, recommended),
        *(_spread(cases, recommended, method) for method in FORECASTS),
    )
    for section in sections:
        yield from section
        yield ""


def _methods(found: Sequence[Score]) -> Iterator[str]:
    yield "| settings from | forecasts | runs | lost | epochs at 4x / 8x | regret | 4x / 8x | over the forecast |"
    yield "|---|---|---|---|---|---|---|---|"
    for method in METHODS:
        own = [score for score in found if score.method == method]
        if own:
            runs, lost = sum(score.runs for score in own), sum(score.lost for score in own)
            by_times = [[score for score in own if score.times == times] for times in TIMES]
            epochs = " / ".join(_epochs(each) for each in by_times)
            regrets = " / ".join(_regret(each) for each in by_times)
            paired = "" if method == FORECAST else _shown(over_forecast(found, method))
            yield (
                f"| {method} | {len(own)} | {runs} | {lost:.3g} ({lost / runs:.1%}) | {epochs} | {_regret(own)} | "
                f"{regrets} | {paired} |"
            )


def _cases(
    cases: Sequence[Case], found: Sequence[Score], held: Trainings, known: Sequence[Case]
) -> Iterator[str]:
    yield f"| case | batch | fewest epochs | {' | '.join(METHODS)} |"
    yield f"|---|---|---|{'---|' * len(METHODS)}"
    for case in cases:
        for times, batch in zip(TIMES, case.batches, strict=True):
            own = [score for score in found if score.case is case and score.times == times]
            least = optimum(case, known, batch, held)
            cells = " | ".join(
                _cell([score for score in own if score.method == method]) for method in METHODS
            )
            yield f"| {case.name} | {batch} | {'-' if least is None else f'{math.exp(least):.3g}'} | {cells} |"


def _cell(own: Sequence[Score]) -> str:
    if not own:
        return "-"
    lost = sum(score.lost for score in own)
    return f"{_regret(own)}{f', {lost:.2g} of {sum(score.runs for score in own)} lost' if lost >= 0.05 else ''}"


def _intervals(cases: Sequence[Case], kept: Sequence[Held]) -> Iterator[str]:
    yield (
        "| case | settings from | mean inside at 4x / 8x | median width | seen over forecast | risk promised | "
        "runs lost |"
    )
    yield "|---|---|---|---|---|---|---|"
    groups = [(case.name, [each for each in kept if each.case is case]) for case in cases]
    for name, of_case in (*groups, ("all", list(kept))):
        for method in FORECASTS:
            own = [each for each in of_case if each.method == method]
            if own:
                by_times = [[each for each in own if each.times == times] for times in TIMES]
                inside = " / ".join(
                    f"{sum(each.inside for each in some)} of {len(some)}" for some in by_times
                )
                width = " / ".join(
                    f"{np.median([each.width for each in some]):.2f}" if some else "-"
                    for some in by_times
                )
                seen = " / ".join(
                    f"{np.exp(np.mean(np.log([each.seen_over_median for each in some]))):.2f}"
                    if some
                    else "-"
                    for some in by_times
                )
                promised = float(np.mean([each.promised_risk for each in own]))
                yield (
                    f"| {name} | {method} | {inside} | {width} | {seen} | {promised:.1%} | "
                    f"{sum(each.lost for each in own) / sum(each.runs for each in own):.1%} |"
                )


def _races(
    cases: Sequence[Case], recommended: Mapping[str, Sequence[Recommended]]
) -> Iterator[str]:
    yield "| case | races | samples of the race over those of its sweep: mean, most |"
    yield "|---|---|---|"
    for case in cases:
        shares = [each.race_share for each in recommended[case.name] if each.race_share is not None]
        if shares:
            yield f"| {case.name} | {len(shares)} | {np.mean(shares):.2f}, {max(shares):.2f} |"


def _spread(
    cases: Sequence[Case], recommended: Mapping[str, Sequence[Recommended]], method: str
) -> Iterator[str]:
    yield (
        f"| {method}: case | batch | rates recommended | within {RATE_FACTOR} of their median | "
        f"warmups in updates | within {WARMUP_FACTOR} |"
    )
    yield "|---|---|---|---|---|---|"
    for case in cases:
        for batch in case.batches:
            made = [
                each.settings[method]
                for each in recommended[case.name]
                if each.global_batch_size == batch and method in each.settings
            ]
            if made:
                rates = np.array([each["learning_rate"] for each in made])
                updates = (
                    np.array([each["warmup_epochs"] for each in made])
                    * trainings.train_samples(case)
                    / batch
                )
                updates = np.maximum(updates, 1.0)
                yield (
                    f"| {case.name} | {batch} | {_list(rates, '.3g')} | {_alike(rates, RATE_FACTOR)} | "
                    f"{_list(updates, '.0f')} | {_alike(updates, WARMUP_FACTOR)} |"
                )


def _list(values: np.ndarray[tuple[int], np.dtype[np.float64]], digits: str) -> str:
    return ", ".join(f"{value:{digits}}" for value in np.sort(values))


def _alike(values: np.ndarray[tuple[int], np.dtype[np.float64]], factor: float) -> str:
    near = np.abs(np.log(values / np.median(values))) <= math.log(factor)
    return f"{near.sum()} of {len(values)}"


def _epochs(own: Sequence[Score]) -> str:
    mean = mean_over_sweeps(own, lambda score: score.log_epochs)
    return "-" if mean is None else f"{math.exp(mean.value):.3g}"


def _regret(own: Sequence[Score]) -> str:
    return _shown(mean_over_sweeps(own, lambda score: score.regret))


def _shown(mean: Mean | None) -> str:
    if mean is None:
        return "-"
    return f"{mean.value:.2f}" + ("" if math.isnan(mean.error) else f" +- {mean.error:.2f}")
