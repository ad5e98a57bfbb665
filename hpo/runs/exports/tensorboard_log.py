"""Exports a study as a TensorBoard folder with one run for each trial, and its hyperparameters for the HParams page.

The folder is written with tensorboardX, a dependency of Ray Tune. ``FOLDER/STUDY/batch-256/trial-00012`` holds one
event file, which is replaced if the trial is written again, so that nothing is duplicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.errors import ExportError
from hpo.runs.exports.tracking import (
    tracked_curve_values,
    tracked_parameters,
    tracked_results,
    tracked_run_name,
    tracked_rung_name,
)
from hpo.study.spec import StudySpec
from storage.records import ConvergencePoint, Study, Trial

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

SUFFIX = ".largebatch"
"""Suffix of the event files that this tracker wrote and may replace."""


class TensorBoardTracker:
    """Writes the trials of one study below ``folder``; see :class:`hpo.runs.exports.tracking.Tracker`."""

    def __init__(self, study: Study, spec: StudySpec, folder: Path) -> None:
        """Raise :class:`ExportError` if tensorboardX is not installed or the folder cannot be created."""
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ExportError(
                "writing for TensorBoard needs tensorboardX, which is not installed; "
                "pip install 'largebatch[train]'"
            ) from error
        self._study, self._spec = study, spec
        self.folder = folder / _folder_name(study.name)
        self._writers: dict[int, SummaryWriter] = {}

    def begin(self, trial: Trial) -> int:
        """Start a new event file in place of any earlier one; return 0, as nothing is written yet."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        folder = self.folder / tracked_rung_name(self._spec, trial) / tracked_run_name(trial)
        for old in folder.glob(f"*tfevents*{SUFFIX}"):
            old.unlink()
        try:
            writer = SummaryWriter(str(folder), filename_suffix=SUFFIX, flush_secs=10)
        except OSError as error:
            raise ExportError(
                f"cannot write into {folder}: {error.strerror or error}; choose another --to"
            ) from error
        self._writers[trial.id] = writer
        shown = {name: _plain(value) for name, value in self._parameters(trial).items()}
        measures = dict.fromkeys((self._study.metric, "epochs_to_target"), 0.0)
        experiment, start, _ = hparams(shown, measures)
        writer.file_writer.add_summary(experiment)
        writer.file_writer.add_summary(start)
        return 0

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Log scalars by optimizer step, with the times at which they were measured."""
        writer = self._writers[trial.id]
        began = trial.started_at.timestamp() if trial.started_at else 0.0
        for point in points:
            for name, value in tracked_curve_values(self._study, point).items():
                writer.add_scalar(name, value, point.step, walltime=began + point.seconds)
        writer.flush()

    def end(self, trial: Trial) -> None:
        """Log the final numbers, log state and reason as text, and mark the HParams session as ended."""
        from tensorboardX.summary import hparams

        writer = self._writers.pop(trial.id)
        for name, value in tracked_results(trial).items():
            writer.add_scalar(f"result/{name}" if name != "epochs_to_target" else name, value, 0)
        writer.add_text("state", f"{trial.state}{f': {trial.reason}' if trial.reason else ''}")
        _, _, end = hparams({"state": str(trial.state)}, {})
        writer.file_writer.add_summary(end)
        writer.close()

    def close(self) -> None:
        """Close open files; trials that have not ended are rewritten next time."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _parameters(self, trial: Trial) -> dict[str, Any]:
        return tracked_parameters(self._study, self._spec, trial)


def open_tensorboard(
    study: Study, spec: StudySpec, place: Path, **settings: str
) -> TensorBoardTracker:
    """Open a study's ``tensorboard`` tracker in the ``folder`` from its settings, or else in ``place``."""
    return TensorBoardTracker(study, spec, Path(settings.get("folder", place / "tensorboard")))


def _plain(value: Any) -> Any:
    """Convert a value to a type that HParams can show: number, string or bool."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _folder_name(name: str) -> str:
    """Return the study's name as a single path segment."""
    kept = "".join(each if each.isalnum() or each in "-_. " else "_" for each in name)
    return kept.strip(". ") or "study"
