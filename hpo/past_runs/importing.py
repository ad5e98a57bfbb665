"""Imports past runs into a stored study, each run only once; skipped runs are reported with the reason."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.errors import EvidenceError
from hpo.past_runs.conversion import (
    ImportedTrial,
    ImportOptions,
    SkippedRunError,
    assumed_settings,
    check_options,
    reason_of_past_run,
    trial_of_past_run,
)
from hpo.past_runs.past_run import PastRun
from hpo.study.spec import StudySpec
from storage.records import (
    NewTrial,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialResult,
    settings_key,
)
from storage.store import Store

_CONTENT = re.compile(r", content [0-9a-f]{8}$")
"""The end of the reason of a trial whose run has the label of another run, with a digest of its content."""
_UNKNOWN = "none"
"""The text of a figure that was not measured or is not a finite number."""


@dataclass
class ImportedRuns:
    """The result of an import.

    ``states`` counts the new trials by how they ended, and ``known`` the runs that were imported before. ``skipped``
    holds the label of each run that was left out, with the reason. ``assumed`` names the settings that the study fixes
    and no run records.
    """

    study: str
    states: dict[str, int] = field(default_factory=dict)
    known: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    @property
    def trials(self) -> int:
        """Number of trials that the study gained."""
        return sum(self.states.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.study,
            "trials": self.trials,
            "states": self.states,
            "known": self.known,
            "skipped": [{"run": run, "reason": reason} for run, reason in self.skipped],
            "assumed": self.assumed,
        }


def import_runs(
    store: Store,
    study: Study,
    spec: StudySpec,
    runs: Sequence[PastRun],
    options: ImportOptions,
    *,
    dry_run: bool = False,
) -> ImportedRuns:
    """Store the runs as finished trials of the study in one transaction; importing them again adds nothing.

    Two runs of the same label are one run if the label holds an id of the tool, or if their batch sizes and settings
    are the same and their curves begin with the same evaluation (without a curve: if their figures are the same).
    Imported trials are evidence for forecasts and initialise a sweep's sampler; they do not count towards the study's
    budget of trials. A ``dry_run`` returns what would be imported and stores nothing. Raises :class:`EvidenceError` if
    there are no runs, or no run can be a trial of the study.
    """
    if not runs:
        raise EvidenceError("there are no runs to import")
    options = check_options(spec, runs, options)
    done, seeds = ImportedRuns(study.name), Counter[str]()
    there = _contents(store, study, {reason_of_past_run(run) for run in runs})
    found: list[ImportedTrial] = []

    def next_seed(new: NewTrial) -> int:
        key = f"{new.global_batch_size} {settings_key(new.settings)}"
        seeds[key] += 1
        return seeds[key] - 1

    for run in runs:
        try:
            trial = trial_of_past_run(spec, run, options, next_seed)
        except SkippedRunError as error:
            done.skipped.append((run.label, str(error)))
            continue
        alike = there[trial.result.reason]
        first = [(point.metric, point.loss) for point in trial.points[:1]]
        content = _content(trial.new, trial.result, first)
        if any(run.has_id or content.is_same_run(other) for other in alike):
            done.known += 1
            continue
        found.append(_with_digest(trial, content) if alike else trial)
        alike.append(content)
    done.states = dict(Counter(str(trial.result.state) for trial in found))
    done.assumed = assumed_settings(spec, runs, options)
    if not found and not done.known:
        reasons = Counter(reason for _, reason in done.skipped).most_common(3)
        raise EvidenceError(
            f"none of {len(runs)} runs can be a trial of study {study.name!r}:\n"
            + "\n".join(f"{count} of them: {reason}" for reason, count in reasons)
        )
    if found and not dry_run:
        store.add_ended_trials(study.id, [(each.new, each.result, each.points) for each in found])
        if study.state is StudyState.QUEUED and study.queued_at is None:
            store.set_study_state(
                study.id, StudyState.INTERRUPTED, "holds imported runs; `hpo run` sweeps from there"
            )
    return done


@dataclass(frozen=True)
class _Content:
    """What a run trained and measured, by which it differs from other runs of the same label.

    ``end`` holds its final figures, and ``first`` the metric and loss of its first evaluation (empty without a curve).
    """

    recipe: tuple[int, str]
    end: tuple[str, ...]
    first: tuple[str, ...]

    def is_same_run(self, other: _Content) -> bool:
        """Return whether both are one run, perhaps read again after it had grown, or after a restart had
        replaced its later evaluations.
        """
        if self.recipe != other.recipe:
            return False
        if not (self.first and other.first):
            return self.end == other.end
        (metric, loss), (its_metric, its_loss) = self.first, other.first
        return metric == its_metric and (loss == its_loss or _UNKNOWN in (loss, its_loss))


def _content(
    trial: Trial | NewTrial, result: Trial | TrialResult, first: Sequence[tuple[float, float]]
) -> _Content:
    figures = result.epochs, result.epochs_to_target, result.best_metric
    return _Content(
        (trial.global_batch_size, settings_key(trial.settings)),
        tuple(map(_text, figures)),
        tuple(_text(figure) for point in first for figure in point),
    )


def _text(figure: float | None) -> str:
    """Return a figure as text, which is the same after it was stored, and if it is not a number."""
    return f"{figure:.9g}" if figure is not None and math.isfinite(figure) else _UNKNOWN


def _contents(store: Store, study: Study, reasons: set[str]) -> dict[str, list[_Content]]:
    """Return the content of each imported trial of the study with one of these reasons, by reason without digest."""
    trials = [
        (reason, trial)
        for trial in store.trials(study.id, purpose=TrialPurpose.IMPORTED)
        if (reason := _CONTENT.sub("", trial.reason)) in reasons
    ]
    curves = store.convergence([trial.id for _, trial in trials])
    found = defaultdict[str, list[_Content]](list)
    for reason, trial in trials:
        curve = curves.of(trial.id)
        first = [*zip(curve.metric[:1].tolist(), curve.loss[:1].tolist(), strict=True)]
        found[reason].append(_content(trial, trial, first))
    return found


def _with_digest(trial: ImportedTrial, content: _Content) -> ImportedTrial:
    """Return the trial with a digest of its content in its reason, which tells it from others of the same label."""
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:8]
    reason = f"{trial.result.reason}, content {digest}"
    return dataclasses.replace(trial, result=dataclasses.replace(trial.result, reason=reason))
