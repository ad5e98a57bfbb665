"""Exports a study as an MLflow experiment with one run for each trial, to a tracking server, a database or a folder.

The experiment is written with the ``mlflow`` library (``pip install mlflow-skinny`` suffices). The tag
``largebatch.trial`` identifies the trial of a run, so that a second export continues where the first stopped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.errors import ExportError
from hpo.runs.exports.tracking import (
    tracked_curve_values,
    tracked_parameters,
    tracked_results,
    tracked_run_key,
    tracked_run_name,
    tracked_rung_name,
)
from hpo.study.spec import StudySpec
from storage.records import ConvergencePoint, Study, Trial, TrialState

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRIAL, STATE, REASON = "largebatch.trial", "largebatch.state", "largebatch.reason"
STUDY, RUNG = "largebatch.study", "largebatch.rung"
"""Tags by which MLflow's pages group runs: the study's name, and the rung, such as ``batch-256``."""
MOST_METRICS = 1000
"""Maximum number of metrics that MLflow accepts in one call."""
LONGEST_PARAMETER, LONGEST_TAG = 500, 5000
"""Maximum number of characters in a value that every MLflow store accepts."""


class MlflowTracker:
    """Writes the trials of one study to the experiment of the same name; see
    :class:`hpo.runs.exports.tracking.Tracker`.
    """

    def __init__(
        self, study: Study, spec: StudySpec, uri: str, experiment: str | None = None
    ) -> None:
        """Raise :class:`ExportError` if MLflow is not installed or its store cannot be used."""
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ExportError(
                "writing to MLflow needs MLflow, which is not installed; pip install mlflow-skinny"
            ) from error
        self._study, self._spec = study, spec
        self._runs: dict[int, str] = {}
        with _told(uri):
            self._client = MlflowClient(tracking_uri=uri)
            self._uri, self._experiment = uri, _experiment(self._client, experiment or study.name)

    def begin(self, trial: Trial) -> int:
        """Open the trial's run, new or existing; return the last step of its metric ``epochs``, which every point
        includes.
        """
        with _told(self._uri):
            before = self._client.search_runs(
                [self._experiment],
                f"tags.`{TRIAL}` = '{tracked_run_key(self._study, trial)}'",
                max_results=1,
            )
            if before:
                self._runs[trial.id] = before[0].info.run_id
                written = self._client.get_metric_history(self._runs[trial.id], "epochs")
                return max((metric.step for metric in written), default=0)
            run = self._client.create_run(
                self._experiment,
                start_time=_milliseconds(trial.started_at or trial.finished_at),
                run_name=f"{self._study.name} {tracked_run_name(trial)}",
                tags={
                    TRIAL: tracked_run_key(self._study, trial),
                    STUDY: self._study.name,
                    RUNG: tracked_rung_name(self._spec, trial),
                },
            )
            self._runs[trial.id] = run.info.run_id
            self._client.log_batch(run.info.run_id, params=list(self._parameters(trial)))
        return 0

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Log metrics by optimizer step, with the times at which they were measured."""
        from mlflow.entities import Metric

        began = _milliseconds(trial.started_at) or 0
        metrics = [
            Metric(name, value, began + round(1000 * point.seconds), point.step)
            for point in points
            for name, value in sorted(
                tracked_curve_values(self._study, point).items(),
                key=lambda each: each[0] == "epochs",
            )
        ]
        with _told(self._uri):
            for first in range(0, len(metrics), MOST_METRICS):
                part = metrics[first : first + MOST_METRICS]
                self._client.log_batch(self._runs[trial.id], metrics=part)

    def end(self, trial: Trial) -> None:
        """Log the results, with state and reason as tags; a failed trial becomes a failed run, and all others are
        marked finished.
        """
        from mlflow.entities import Metric, RunTag

        ended = _milliseconds(trial.finished_at) or 0
        with _told(self._uri):
            run = self._runs.pop(trial.id)
            if self._client.get_run(run).data.tags.get(STATE) == str(trial.state):
                return
            self._client.log_batch(
                run,
                metrics=[
                    Metric(f"result.{name}", value, ended, trial.steps or 0)
                    for name, value in tracked_results(trial).items()
                ],
                tags=[
                    RunTag(STATE, str(trial.state)),
                    *([RunTag(REASON, trial.reason[:LONGEST_TAG])] if trial.reason else []),
                ],
            )
            failed = trial.state is TrialState.FAILED
            self._client.set_terminated(
                run, "FAILED" if failed else "FINISHED", end_time=ended or None
            )

    def close(self) -> None:
        """Do nothing: an unfinished run is continued next time."""

    def _parameters(self, trial: Trial) -> Iterator[Any]:
        from mlflow.entities import Param

        for name, value in tracked_parameters(self._study, self._spec, trial).items():
            yield Param(name, str(value)[:LONGEST_PARAMETER])


def open_mlflow(
    study: Study,
    spec: StudySpec,
    folder: Path,
    *,
    uri: str | None = None,
    experiment: str | None = None,
) -> MlflowTracker:
    """Open a study's ``mlflow`` tracker at ``uri``, at the environment's URI, or else at a database in ``folder``."""
    place = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
    return MlflowTracker(study, spec, place, experiment)


@contextmanager
def _told(uri: str) -> Iterator[None]:
    """Convert errors from MLflow and its store to :class:`ExportError`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        words = str(getattr(error, "message", "") or error).strip().splitlines()[0]
        raise ExportError(
            f"cannot write to MLflow at {uri}: {words}; give sqlite:///mlflow.db, or the URI of a tracking server"
        ) from error


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage != "active":
        raise ExportError(
            f"the experiment {name!r} was deleted in MLflow; restore it there, or give another --experiment"
        )
    return str(found.experiment_id)


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else math.floor(1000 * time.timestamp())
