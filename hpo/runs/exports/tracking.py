"""Writes studies to existing experiment trackers (:mod:`hpo.study.trackers`), once or while they run.

A tracker only reads the database: a study trains independently of its trackers, and an unavailable tracker never makes
a trial fail. Each trial of a sweep or race becomes a run with its settings, its curves by optimizer step, and the way
in which it ended. So does each run of a plan whose report is in the plan's folder. Runs that were written in part are
completed, and nothing is written twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hpo.errors import ExportError
from hpo.planning.launchers.run import FILES
from hpo.study.sizes import sizes_in_words, sizes_of_settings
from hpo.study.spec import StudySpec
from hpo.study.trackers import TrackerChoice, described_tracker
from search_spaces.plugins import load_attribute
from storage.figures import TRIAL_FIELDS
from storage.records import (
    ConvergencePoint,
    StoredPlan,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from storage.store import Store
from trainers import report

POLL_SECONDS = 2.0
"""Seconds between two polls for new points."""

_OPEN = (StudyState.QUEUED, StudyState.RUNNING)


class TrackerWarning(UserWarning):
    """Warns that a tracker continues, but not in the way that its study asked for."""


class Tracker(Protocol):
    """Writes the trials of one study; called from one thread.

    The run of a plan is passed as a trial with the purpose ``outcome`` and the plan's ``number``.
    """

    def begin(self, trial: Trial) -> int:
        """Start a trial; return the step up to which its curve has already been written, or 0."""

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Write further points of the trial's curve, ordered by step."""

    def end(self, trial: Trial) -> None:
        """Write how the trial ended; called only once."""

    def close(self) -> None:
        """Release all resources."""


def track_study(
    store: Store,
    study: Study,
    tracker: Tracker,
    *,
    follow: bool = False,
    stopped: Callable[[float], bool] = lambda seconds: False,  # noqa: ARG005
) -> int:
    """Write the trials of a study and the runs of its plans; return how many trials have ended.

    With ``follow``, continue until the study is no longer queued or running, or until ``stopped`` returns true.
    ``stopped`` is called with the number of seconds to wait.
    """
    written: dict[int, int] = {}
    ended: set[int] = set()
    while True:
        # the study is read before its trials, so that trials that ended with it are included
        at_rest = store.study_by_id(study.id).state not in _OPEN
        for trial, read in (*_trials(store, study), *_launched(store, study)):
            if trial.id in ended or trial.state is TrialState.QUEUED:
                continue
            if trial.id not in written:
                written[trial.id] = tracker.begin(trial)
            new = [point for point in read() if point.step > written[trial.id]]
            if new:
                tracker.add(trial, new)
                written[trial.id] = new[-1].step
            if trial.state.finished:
                tracker.end(trial)
                ended.add(trial.id)
        if at_rest or not follow or stopped(POLL_SECONDS):
            return sum(number >= 0 for number in ended)


def make_tracker(choice: TrackerChoice, study: Study, spec: StudySpec, folder: Path) -> Tracker:
    """Open one of a study's trackers; its local files go below ``folder``. Raises :class:`ExportError`."""
    try:
        rule = described_tracker(choice.name).rule
    except ValueError as error:
        raise ExportError(str(error)) from error
    try:
        make = load_attribute(rule)
    except Exception as error:
        raise ExportError(f"{rule} cannot be imported: {type(error).__name__}: {error}") from error
    opened: Tracker = make(study, spec, folder, **choice.settings)
    return opened


def tracked_run_name(trial: Trial) -> str:
    """Return ``trial-00012``, or ``plan-3-seed-5`` for a plan's run: a name that is unique in its study and
    reproducible.
    """
    if trial.purpose == TrialPurpose.OUTCOME:
        return f"plan-{trial.number}-seed-{trial.seed}"
    return f"trial-{trial.number:05d}"


def tracked_run_key(study: Study, trial: Trial) -> str:
    """Return the identifier by which a run is found again and continued, unique across all studies of its database."""
    made = study.created_at.isoformat(timespec="seconds")
    name = str(trial.number) if trial.purpose != TrialPurpose.OUTCOME else tracked_run_name(trial)
    return f"{study.id} {made} {name}"


def tracked_end(trial: Trial) -> str:
    """Return how and when a trial ended, which differs from its earlier end if it has been trained again."""
    return f"{trial.state} after {trial.steps} steps at {trial.finished_at}"


def is_tracked_whole(trial: Trial, known: Mapping[str, Any]) -> bool:
    """Return whether a trial's run was written to its end, according to the ``known`` content of its state file.

    Files of earlier versions say only that the trial had ended, and up to which step it was written.
    """
    if known.get("ended") is not True:
        return known.get("ended") == tracked_end(trial)
    return trial.state.finished and trial.steps is not None and trial.steps <= known["step"]


def tracked_rung_name(spec: StudySpec, trial: Trial) -> str:
    """Return the name of a trial's rung, by which trackers group runs: ``batch-64``, or
    ``batch-64-width-32-samples-4096``.
    """
    sizes = (
        re.sub(r"[ ,]+", "-", sizes_in_words(sizes_of_settings(spec, trial.settings)))
        if spec.sizes
        else ""
    )
    return "-".join(filter(None, (f"batch-{trial.global_batch_size}", sizes)))


Read = Callable[[], Sequence[ConvergencePoint]]


def _trials(store: Store, study: Study) -> Iterator[tuple[Trial, Read]]:
    for trial in store.trials(study.id):
        yield trial, lambda trial=trial: store.points(trial.id)  # type: ignore[misc]


def _launched(store: Store, study: Study) -> Iterator[tuple[Trial, Read]]:
    """Yield each run of the study's plans that has a report, with a function that reads its points."""
    for plan in store.plans(study.id):
        for folder in sorted(Path(plan.directory).glob("seed-*")):
            path = folder / FILES.report
            try:
                trial = _run_of(plan, int(folder.name.partition("-")[2]), path)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # the run has not started, or the report is not ours
            yield trial, lambda path=path: _points(path)  # type: ignore[misc]


def _run_of(plan: StoredPlan, seed: int, path: Path) -> Trial:
    outcome = report.read_outcome(path)
    told = {} if outcome is None else asdict(outcome)
    return Trial(
        id=-1 - (plan.id << 64) - seed,
        study_id=plan.study_id,
        number=plan.id,
        state=TrialState(told.pop("state", TrialState.RUNNING)),
        global_batch_size=plan.global_batch_size,
        seed=seed,
        settings=plan.settings,
        purpose=TrialPurpose.OUTCOME,
        reason=told.pop("reason", ""),
        started_at=plan.created_at,
        finished_at=None,
        **{each.name: told[each.name] for each in TRIAL_FIELDS if each.name in told},
    )


def _points(path: Path) -> list[ConvergencePoint]:
    return [ConvergencePoint(**asdict(point)) for point in report.read_points(path)]


def tracked_parameters(study: Study, spec: StudySpec, trial: Trial) -> dict[str, Any]:
    """Return the settings of a trial that its study names, tuned and fixed, with its batch size, sizes, seed and
    purpose.
    """
    names = [*spec.search.to_optuna(), *spec.search.fixed]
    sizes = dict(sizes_of_settings(spec, trial.settings)) if spec.sizes else {}
    return {
        "study": study.name,
        "workload": study.workload,
        "global_batch_size": trial.global_batch_size,
        "seed": trial.seed,
        "purpose": trial.purpose,
        **sizes,
        **{name: trial.settings[name] for name in names if name in trial.settings},
    }


def tracked_curve_values(study: Study, point: ConvergencePoint) -> dict[str, float]:
    """Return the values measured at a point, by name; the target metric appears under its own name."""
    measured = {
        "epochs": point.epochs,
        "samples": float(point.samples),
        "loss": point.loss,
        study.metric: point.metric,
        "train_loss": point.train_loss,
        "learning_rate": point.learning_rate,
        "gradient_noise_scale": point.gradient_noise_scale,
    }
    return {
        name: float(value)
        for name, value in measured.items()
        if value is not None and not math.isnan(value)
    }


def tracked_results(trial: Trial) -> dict[str, float]:
    """Return the final numbers of a trial."""
    found = {each.name: getattr(trial, each.name) for each in TRIAL_FIELDS}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }
