"""Recommendations of the forecast and each rule of thumb at the target batches after a sweep; recomputed every time.

If there was a race, the forecast is made twice: from the sweep alone, and from the sweep and the race at that batch.
No forecast or race uses a race at the other target batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import hpo
from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.trainings import rounded
from hpo.runs.results import StudyForecast, StudyResult, best_settings, epochs_trained
from search_spaces.scaling_rules import SCALING_RULES
from search_spaces.settings import TrainingSettings
from storage.records import TrialPurpose

FORECAST = "forecast"
RACED = "forecast, raced"
FORECASTS = (FORECAST, RACED)
RULES = ("none", "sqrt", "linear")
STARTS = ("best", "law")
"""Where a rule starts at the top rung: from its best trial, or from the laws' recommendation there."""

METHODS = (*FORECASTS, *(f"{rule}, {start}" for start in STARTS for rule in RULES))


@dataclass(frozen=True)
class Recommended:
    """All recommendations after one sweep at one target batch, by method, and the forecasts behind the first two.

    ``race_share`` is the ratio of the race's samples to the sweep's, or None if there was no race.
    """

    sweep: str
    global_batch_size: int
    settings: Mapping[str, Mapping[str, float]]
    forecasts: Mapping[str, StudyForecast]
    race_share: float | None = None


def recommendations(case: Case, result: StudyResult) -> list[Recommended]:
    """Return the recommendations of a sweep at every target batch of its case."""
    top = case.ladder[-1]
    swept = with_race_at(result, None)
    posterior = hpo.fit_posterior(swept)
    best = best_settings([trial for trial in swept.trials if trial.global_batch_size == top])
    starts: dict[str, TrainingSettings] = {"law": hpo.forecast(swept, top, posterior).settings}
    if best is not None:
        starts["best"] = best.settings
    names = swept.spec.search.scaled
    found = []
    for batch in case.batches:
        made = {FORECAST: hpo.forecast(swept, batch, posterior)}
        raced = with_race_at(result, batch)
        if raced.raced:
            made[RACED] = hpo.forecast(raced, batch)
        settings = {method: _tuned(each.settings, names) for method, each in made.items()}
        for start, start_settings in starts.items():
            for rule in RULES:
                settings[f"{rule}, {start}"] = _tuned(
                    SCALING_RULES[rule](start_settings, top, batch), names
                )
        share = epochs_trained(raced.raced) / epochs_trained(swept.trials) if raced.raced else None
        found.append(Recommended(result.spec.name, batch, settings, made, share))
    return found


def with_race_at(result: StudyResult, global_batch_size: int | None) -> StudyResult:
    """Return a sweep with the race at one batch, or without one: the trials of every other race are left out."""
    trials = tuple(
        trial
        for trial in result.trials
        if trial.purpose != TrialPurpose.RACE or trial.global_batch_size == global_batch_size
    )
    return dataclasses.replace(result, trials=trials)


def _tuned(settings: TrainingSettings, names: tuple[str, ...]) -> dict[str, float]:
    return rounded({name: float(getattr(settings, name)) for name in names})
