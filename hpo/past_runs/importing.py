"""Imports past runs into a stored study, each run only once; skipped runs are reported with the reason."""

from __future__ import annotations

from collections import Counter
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
    trial_of_past_run,
)
from hpo.past_runs.past_run import PastRun
from hpo.study.spec import StudySpec
from storage.records import NewTrial, Study, StudyState, TrialPurpose, settings_key
from storage.store import Store


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

    Imported trials are evidence for forecasts and initialise a sweep's sampler; they do not count towards the study's
    budget of trials. A ``dry_run`` returns what would be imported and stores nothing. Raises :class:`EvidenceError` if
    there are no runs, or no run can be a trial of the study.
    """
    if not runs:
        raise EvidenceError("there are no runs to import")
    options = check_options(spec, runs, options)
    done, seeds = ImportedRuns(study.name), Counter[str]()
    there = {trial.reason for trial in store.trials(study.id, purpose=TrialPurpose.IMPORTED)}
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
        if trial.result.reason in there:
            done.known += 1
            continue
        there.add(trial.result.reason)
        found.append(trial)
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
