"""Exports a study to Weights & Biases with one run for each trial, grouped by study and rung; it works offline too.

The runs are written with the ``wandb`` library (``pip install "largebatch[wandb]"``). The key comes from ``wandb
login`` or the variable ``WANDB_API_KEY``, never from a study file. Without a key or network access, runs are written to
``FOLDER/wandb``, and ``wandb sync`` uploads them later. A run's id is derived from its study and trial. A file in the
tracker's local folder records how far it was written, so that a second export continues where the first stopped.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.errors import ExportError
from hpo.runs.exports.tracking import (
    TrackerWarning,
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
from storage.records import ConvergencePoint, Study, Trial, TrialState
from trainers.json_text import json_text

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

PROJECT = "largebatch"
INIT_SECONDS = 30.0
"""Seconds to wait for the first response from the Weights & Biases server."""


class WandbTracker:
    """Writes the trials of one study to a project; see :class:`hpo.runs.exports.tracking.Tracker`."""

    def __init__(
        self,
        study: Study,
        spec: StudySpec,
        folder: Path,
        *,
        project: str = PROJECT,
        entity: str | None = None,
        mode: str = "online",
    ) -> None:
        """Raise :class:`ExportError` if wandb is not installed or ``mode`` is unknown."""
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise ExportError(
                "writing to Weights & Biases needs wandb, which is not installed; "
                'pip install "largebatch[wandb]"'
            ) from error
        if mode not in ("online", "offline"):
            raise ExportError(f"the wandb mode must be online or offline, but got {mode!r}")
        self._study, self._spec, self._folder = study, spec, folder
        self._project, self._entity, self._mode = project, entity, mode
        self._runs: dict[int, Run] = {}

    def begin(self, trial: Trial) -> int:
        """Open the trial's run, new or existing, unless it is already complete; a retried trial continues its run."""
        known = self._known(trial)
        if is_tracked_whole(trial, known):
            return int(known["step"])
        run = self._runs[trial.id] = self._open(trial)
        return max(int(known.get("step", 0)), int(run.starting_step) - 1, 0)

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Log the measured values by optimizer step."""
        for point in points:
            self._runs[trial.id].log(tracked_curve_values(self._study, point), step=point.step)
        self._keep(trial, step=points[-1].step)

    def end(self, trial: Trial) -> None:
        """Write results, state and reason to the summary; a failed trial becomes a failed run."""
        run = self._runs.pop(trial.id, None)
        if run is None:
            return
        run.summary.update(
            {f"result/{name}": value for name, value in tracked_results(trial).items()}
        )
        run.summary.update({"state": str(trial.state), "reason": trial.reason})
        run.finish(exit_code=int(trial.state is TrialState.FAILED))
        self._keep(trial, step=self._known(trial).get("step", 0), ended=tracked_end(trial))

    def close(self) -> None:
        """Close open runs; a trial that has not ended is continued next time."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _open(self, trial: Trial) -> Run:
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        asked = self._mode
        for mode in dict.fromkeys((asked, "offline")):
            try:
                return wandb.init(
                    id=self._id(trial) + ("" if mode == asked else "-offline"),
                    name=f"{self._study.name} {tracked_run_name(trial)}",
                    project=self._project,
                    entity=self._entity,
                    group=f"{self._study.name} {tracked_rung_name(self._spec, trial)}",
                    job_type=str(trial.purpose),
                    tags=[self._study.name[:64], tracked_rung_name(self._spec, trial)],
                    config=tracked_parameters(self._study, self._spec, trial),
                    dir=self._folder,
                    mode=mode,
                    resume="allow" if mode == "online" else None,
                    reinit="create_new",
                    settings=wandb.Settings(
                        init_timeout=INIT_SECONDS,
                        console="off",
                        silent=True,
                        disable_git=True,
                        save_code=False,
                        x_disable_stats=True,
                        x_disable_meta=True,
                    ),
                )
            except Exception as error:  # from the library, its server or its separate process
                failed = error
                if mode == "offline":
                    break
                self._mode = "offline"
                warnings.warn(
                    f"it cannot be reached ({_first_line(error)}); runs are written to "
                    f"{self._folder / 'wandb'}; upload them with `wandb sync`",
                    TrackerWarning,
                    stacklevel=2,
                )
        raise ExportError(f"cannot write to wandb: {_first_line(failed)}") from failed

    def _id(self, trial: Trial) -> str:
        return hashlib.sha256(tracked_run_key(self._study, trial).encode()).hexdigest()[:20]

    def _state_path(self, trial: Trial) -> Path:
        return (
            self._folder
            / "wandb-written"
            / f"{self._project}-{self._id(trial)}.json".replace("/", "_")
        )

    def _known(self, trial: Trial) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads(self._state_path(trial).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return known

    def _keep(self, trial: Trial, *, step: int, ended: str = "") -> None:
        path = self._state_path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_text({"step": step, "ended": ended}), "utf-8")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
