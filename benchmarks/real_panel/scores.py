"""The results of each recommendation: epochs, lost runs, regret over the optimum, and whether the interval held."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.real_panel import trainings
from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.recommendations import FORECAST, METHODS, Recommended
from benchmarks.real_panel.surface import Surface, log_optimum
from benchmarks.real_panel.trainings import Trainings


@dataclass(frozen=True)
class Score:
    """The score of one method after one sweep at one target batch, from the geometric mean epochs of ``runs`` runs.

    ``regret`` is the log ratio of these epochs to the optimum, or None if the optimum is unknown.
    """

    case: Case
    sweep: str
    times: int
    method: str
    runs: int
    lost: float
    log_epochs: float
    regret: float | None


@dataclass(frozen=True)
class Held:
    """The forecast after one sweep at one target batch, and whether it held."""

    case: Case
    sweep: str
    times: int
    method: str
    seen_over_median: float
    inside: bool
    width: float
    promised_risk: float
    lost: int
    runs: int


@dataclass(frozen=True)
class Mean:
    """A mean over sweeps with its standard error, NaN if there are fewer than two."""

    value: float
    error: float


def optimum(case: Case, cases: Sequence[Case], batch: int, held: Trainings) -> float | None:
    """Return the log of the fewest known epochs at a batch, by the surface of the case or that of its reference."""
    of = next((each for each in cases if each.name == (case.optimum_of or case.name)), None)
    return (
        None
        if of is None
        else log_optimum(held.of(of, batch), trainings.train_samples(case) / batch)
    )


def scores(
    case: Case, recommended: Sequence[Recommended], held: Trainings, cases: Sequence[Case]
) -> list[Score]:
    """Return the score of every method that was trained with all seeds of its case."""
    best = {batch: optimum(case, cases, batch, held) for batch in case.batches}
    found = []
    for each in recommended:
        batch = each.global_batch_size
        for method in METHODS:
            runs = (
                held.find(case, batch, each.settings[method], case.seeds)
                if method in each.settings
                else []
            )
            if len(runs) == case.seeds:
                mean = float(np.mean(np.log([run.counted_epochs for run in runs])))
                least = best[batch]
                found.append(
                    Score(
                        case,
                        each.sweep,
                        batch // case.ladder[-1],
                        method,
                        len(runs),
                        sum(run.lost for run in runs),
                        mean,
                        None if least is None else mean - least,
                    )
                )
    return found


def looked_up(case: Case, recommended: Sequence[Recommended], held: Trainings) -> list[Score]:
    """Score every method by the surface of nearby runs: a quick estimate during development, not a measurement.

    ``lost`` is the probability that one run is lost. The result is empty if the surface lacks a tuned setting.
    """
    found = []
    for each in recommended:
        batch = each.global_batch_size
        trained = held.of(case, batch)
        updates_per_epoch = trainings.train_samples(case) / batch
        least = log_optimum(trained, updates_per_epoch)
        if case.grid_from is None or least is None:
            continue
        surface = Surface(trained, updates_per_epoch)
        for method, settings in each.settings.items():
            lost, epochs = (
                float(surface.lost([settings])[0]),
                float(surface.log_epochs([settings])[0]),
            )
            expected = (1 - lost) * epochs + lost * math.log(trainings.LOST_EPOCHS)
            found.append(
                Score(
                    case,
                    each.sweep,
                    batch // case.ladder[-1],
                    method,
                    1,
                    lost,
                    expected,
                    expected - least,
                )
            )
    return found


def promises(case: Case, recommended: Sequence[Recommended], held: Trainings) -> list[Held]:
    """Return the forecasts whose settings were trained with all seeds of their case."""
    found = []
    for each in recommended:
        for method, forecast in each.forecasts.items():
            runs = held.find(case, each.global_batch_size, each.settings[method], case.seeds)
            if len(runs) == case.seeds:
                epochs = forecast.epochs_to_target
                mean = math.exp(float(np.mean(np.log([run.counted_epochs for run in runs]))))
                found.append(
                    Held(
                        case,
                        each.sweep,
                        each.global_batch_size // case.ladder[-1],
                        method,
                        mean / epochs.median,
                        epochs.low <= mean <= epochs.high,
                        epochs.high / epochs.low,
                        forecast.numbers.divergence or 0.0,
                        sum(run.lost for run in runs),
                        len(runs),
                    )
                )
    return found


def mean_over_sweeps(found: Iterable[Score], value: Callable[[Score], float | None]) -> Mean | None:
    """Return the mean of a value; both batches of a sweep count as one draw, and the standard error is over sweeps."""
    by_sweep: dict[str, list[float]] = defaultdict(list)
    for score in found:
        each = value(score)
        if each is not None:
            by_sweep[score.sweep].append(each)
    if not by_sweep:
        return None
    means = [float(np.mean(values)) for values in by_sweep.values()]
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Mean(float(np.mean(means)), error)


def over_forecast(found: Sequence[Score], method: str) -> Mean | None:
    """Return the log ratio of a method's epochs to the forecast's, paired by sweep, batch and seeds."""
    forecast = {
        (score.sweep, score.times): score.log_epochs for score in found if score.method == FORECAST
    }
    return mean_over_sweeps(
        (
            score
            for score in found
            if score.method == method and (score.sweep, score.times) in forecast
        ),
        lambda score: score.log_epochs - forecast[score.sweep, score.times],
    )
