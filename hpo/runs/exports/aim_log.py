"""Exports a study to Aim with one run for each trial, in an experiment named after the study, with its rung as a tag.

The runs are written with the ``aim`` library (``pip install "largebatch[aim]"``) to a repository on disk or on a server
(``aim://host:port``), which ``aim up`` shows. Aim assigns hashes to its runs. Files in the tracker's local folder map
trials to hashes and record how far each one was written, so that a second export continues where the first stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpo.errors import ExportError
from hpo.runs.exports.tracking import (
    is_tracked_whole,
    tracked_curve_values,
    tracked_end,
    tracked_parameters,
    tracked_results,
    tracked_run_key,
    tracked_run_name,
    tracked_rung_name,
)
from hpo.study.spec import StudySpec
from storage.records import ConvergencePoint, Study, Trial
from trainers.json_text import json_text


class AimTracker:
    """Writes the trials of one study to a repository; see :class:`hpo.runs.exports.tracking.Tracker`."""

    def __init__(
        self,
        study: Study,
        spec: StudySpec,
        folder: Path,
        *,
        repo: str | None = None,
        experiment: str | None = None,
    ) -> None:
        """Raise :class:`ExportError` if Aim is not installed."""
        try:
            import aim  # noqa: F401
        except ImportError as error:
            raise ExportError(
                'writing to Aim needs aim, which is not installed; pip install "largebatch[aim]"'
            ) from error
        self._study, self._spec, self._folder = study, spec, folder
        self._repo = str(folder / "aim") if repo is None else repo
        self._experiment = experiment or study.name
        self._runs: dict[int, Any] = {}

    def begin(self, trial: Trial) -> int:
        """Open the trial's run, new or existing, unless it is already complete; a retried trial continues its run."""
        known = self._known(trial)
        if is_tracked_whole(trial, known):
            return int(known["step"])
        run = self._runs[trial.id] = self._open(known.get("hash"))
        if not known:
            run.name = f"{self._study.name} {tracked_run_name(trial)}"
            run.add_tag(tracked_rung_name(self._spec, trial))
            run["parameters"] = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in tracked_parameters(self._study, self._spec, trial).items()
            }
            self._keep(trial, run.hash, step=0)
        return int(known.get("step", 0))

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Log the measured values by optimizer step."""
        run = self._runs[trial.id]
        for point in points:
            for name, value in tracked_curve_values(self._study, point).items():
                run.track(value, name=name, step=point.step, epoch=point.epochs)
        self._keep(trial, run.hash, step=points[-1].step)

    def end(self, trial: Trial) -> None:
        """Log the results, state and reason as parameters."""
        run = self._runs.pop(trial.id, None)
        if run is None:
            return
        run["results"] = tracked_results(trial)
        run["ended"] = {"state": str(trial.state), "reason": trial.reason}
        run.close()
        step = self._known(trial).get("step", 0)
        self._keep(trial, run.hash, step=step, ended=tracked_end(trial))

    def close(self) -> None:
        """Close open runs; a trial that has not ended is continued next time."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()

    def _open(self, known: str | None) -> Any:
        from aim import Run

        if "://" not in self._repo:
            Path(self._repo).mkdir(parents=True, exist_ok=True)
        try:
            return Run(
                run_hash=known,
                repo=self._repo,
                experiment=self._experiment,
                system_tracking_interval=None,
                capture_terminal_logs=False,
                log_system_params=False,
            )
        except Exception as error:  # the error may come from Aim, its database or its server
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportError(f"cannot write to Aim's repository {self._repo}: {said}") from error

    def _state_path(self, trial: Trial) -> Path:
        key = f"{self._repo} {tracked_run_key(self._study, trial)}"
        return (
            self._folder / "aim-written" / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
        )

    def _known(self, trial: Trial) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads(self._state_path(trial).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return known

    def _keep(self, trial: Trial, run_hash: str, *, step: int, ended: str = "") -> None:
        path = self._state_path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_text({"hash": run_hash, "step": step, "ended": ended}), "utf-8")
