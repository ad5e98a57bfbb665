"""What the forecast and each rule of thumb recommend at the target batches after a sweep; made anew at every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import hpo
from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.trainings import rounded
from hpo.runs.results import StudyForecast, StudyResult, best_settings
from search_spaces.scaling_rules import SCALING_RULES
from search_spaces.settings import TrainingSettings

FORECAST = "forecast"
RULES = ("none", "sqrt", "linear")
STARTS = ("best", "law")
"""Where a rule starts at the top rung: from its best trial, or from what the laws recommend there."""

METHODS = (FORECAST, *(f"{rule}, {start}" for start in STARTS for rule in RULES))


@dataclass(frozen=True)
class Recommended:
    """All recommendations after one sweep at one target batch, by method, and the forecast behind the first."""

    sweep: str
    global_batch_size: int
    settings: Mapping[str, Mapping[str, float]]
    forecast: StudyForecast


def recommendations(case: Case, result: StudyResult) -> list[Recommended]:
    """The recommendations of a sweep at every target batch of its case."""
    top = case.ladder[-1]
    posterior = hpo.fit_posterior(result)
    best = best_settings([trial for trial in result.trials if trial.global_batch_size == top])
    starts: dict[str, TrainingSettings] = {"law": hpo.forecast(result, top, posterior).settings}
    if best is not None:
        starts["best"] = best.settings
    names = result.spec.search.scaled
    found = []
    for batch in case.batches:
        made = hpo.forecast(result, batch, posterior)
        settings = {FORECAST: _tuned(made.settings, names)}
        for start, start_settings in starts.items():
            for rule in RULES:
                settings[f"{rule}, {start}"] = _tuned(
                    SCALING_RULES[rule](start_settings, top, batch), names
                )
        found.append(Recommended(result.spec.name, batch, settings, made))
    return found


def _tuned(settings: TrainingSettings, names: tuple[str, ...]) -> dict[str, float]:
    return rounded({name: float(getattr(settings, name)) for name in names})
