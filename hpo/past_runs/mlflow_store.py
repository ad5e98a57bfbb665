"""Reads runs from MLflow: from a folder of files (``mlruns``), an SQLite database, or a tracking server.

Folders and SQLite databases are read directly, without MLflow. In a folder, each parameter is a file, and each metric
is a file with lines ``TIMESTAMP VALUE STEP``; a database has the tables ``runs``, ``params`` and ``metrics``. Any other
store, such as a tracking server, is read with the library ``mlflow``, which must be installed.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hpo.errors import EvidenceError
from hpo.past_runs.past_run import PastRun, Reading

STATUSES = {"1": "running", "2": "scheduled", "3": "finished", "4": "failed", "5": "killed"}
"""MLflow's ``RunStatus`` values, by the numbers used in its files."""

LARGEST = 1.7976931348623157e308
"""The number that represents infinity in MLflow's databases."""


def read_mlflow(source: str, experiment: str | None = None) -> list[PastRun]:
    """Return the undeleted runs of a store, or only those of ``experiment``, given by name or number.

    ``source`` is a folder, ``sqlite:///mlflow.db`` or the path of such a file, or the URI of a tracking server. Raises
    :class:`EvidenceError` for a source that cannot be read or has no such experiment.
    """
    path = Path(source.removeprefix("sqlite:///").removeprefix("file://"))
    if "://" in source and not source.startswith(("sqlite:///", "file://")):
        found = _from_server(source)
    elif path.is_dir():
        found = _from_folder(path)
    elif path.is_file():
        found = _from_database(path)
    else:
        raise EvidenceError(
            f"there is no MLflow store at {source}; give a folder such as mlruns, a database such as "
            "sqlite:///mlflow.db, or the URI of a tracking server"
        )
    runs = list(found)
    if experiment is None:
        return [run for _, run in runs]
    chosen = [run for names, run in runs if experiment in names]
    if not chosen:
        there = sorted({names[1] for names, _ in runs})
        raise EvidenceError(
            f"{source} has no runs of an experiment {experiment!r}; it has {', '.join(there) or 'none'}"
        )
    return chosen


_Found = Iterator[tuple[tuple[str, str], PastRun]]
"""The runs that were found, each with the number and name of its experiment."""


def _run(
    number: str,
    name: str,
    status: str,
    times: Sequence[Any],
    values: Mapping[str, Any],
    curves: Mapping[str, Sequence[tuple[int, float, float]]],
) -> PastRun:
    """Return a run. ``times`` are its start and end; curves hold step, value and time. Times are in milliseconds.

    The values of one step are ordered by time, so that a resumed run's later value comes last.
    """
    start, end = (None if time in (None, "") else float(time) for time in times)
    first = min((time for readings in curves.values() for _, _, time in readings), default=0.0)
    begin = start if start is not None else first
    readings = {
        key: [
            Reading(step, value, (time - begin) / 1000)
            for step, value, time in sorted(curve, key=lambda logged: (logged[0], logged[2]))
        ]
        for key, curve in curves.items()
    }
    last = {key: curve[-1].value for key, curve in readings.items()}
    return PastRun(
        label=f"mlflow {number}",
        values={**last, **values, "run_name": name},
        curves=readings,
        status=status.lower(),
        seconds=None if start is None or end is None else (end - start) / 1000,
        has_id=True,
    )


# a folder of files


def _from_folder(root: Path) -> _Found:
    experiments = sorted(path.parent for path in root.glob("*/meta.yaml"))
    if not experiments:
        raise EvidenceError(
            f"{root} is not an MLflow store: it has no experiment folder with a meta.yaml"
        )
    for experiment in experiments:
        about = _meta(experiment)
        names = str(about.get("experiment_id", experiment.name)), str(about.get("name", ""))
        for run in sorted(path.parent for path in experiment.glob("*/meta.yaml")):
            meta = _meta(run)
            if meta.get("lifecycle_stage", "active") != "active":
                continue
            status = str(meta.get("status", ""))
            yield (
                names,
                _run(
                    str(meta.get("run_id") or meta.get("run_uuid") or run.name),
                    str(meta.get("run_name") or ""),
                    STATUSES.get(status, status),
                    (meta.get("start_time"), meta.get("end_time")),
                    {name: path.read_text("utf-8") for name, path in _files(run / "params")},
                    {name: list(_metric(path)) for name, path in _files(run / "metrics")},
                ),
            )


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.yaml"
    try:
        meta = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EvidenceError(f"cannot read {path} of the MLflow store: {error}") from error
    return meta if isinstance(meta, dict) else {}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield files by their MLflow name, in which a slash separates subfolders."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _metric(path: Path) -> Iterator[tuple[int, float, float]]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        words = line.split()
        try:
            time, value = float(words[0]), float(words[1])
            yield int(words[2]) if len(words) > 2 else 0, value, time
        except (IndexError, ValueError):
            raise EvidenceError(
                f"{path}, line {number}: an MLflow metric must be 'TIMESTAMP VALUE STEP', but "
                f"got {line!r}"
            ) from None


# an SQLite database


def _from_database(path: Path) -> _Found:
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            yield from _rows(connection)
    except sqlite3.Error as error:
        raise EvidenceError(f"{path} is not an MLflow SQLite database: {error}") from error


def _rows(connection: sqlite3.Connection) -> _Found:
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for run, key, value in connection.execute("SELECT run_uuid, key, value FROM params"):
        values[run][key] = value
    curves: dict[str, dict[str, list[tuple[int, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    metrics = connection.execute(
        "SELECT run_uuid, key, step, value, timestamp, is_nan FROM metrics"
    )
    for run, key, step, value, time, is_nan in metrics:
        curves[run][key].append((step, math.nan if is_nan else _unbounded(value), float(time)))
    runs = connection.execute(
        "SELECT e.experiment_id, e.name, r.run_uuid, r.name, r.status, r.start_time, r.end_time FROM runs r "
        "JOIN experiments e ON e.experiment_id = r.experiment_id WHERE r.lifecycle_stage = 'active' "
        "ORDER BY r.start_time, r.run_uuid"
    )
    for experiment, title, run, name, status, *times in runs.fetchall():
        yield (
            (str(experiment), str(title)),
            _run(run, name or "", str(status), times, values[run], curves[run]),
        )


def _unbounded(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


# a tracking server


def _from_server(uri: str) -> _Found:
    try:
        from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]
        from mlflow.exceptions import (  # type: ignore[import-not-found,unused-ignore]
            MlflowException,
        )
    except ImportError as error:
        raise EvidenceError(
            f"reading {uri} needs MLflow, which is not installed: pip install mlflow-skinny; "
            f"MLflow folders and SQLite databases are read without it"
        ) from error
    try:
        client = MlflowClient(uri)
        for experiment in client.search_experiments():
            token = None
            while True:
                page = client.search_runs([experiment.experiment_id], page_token=token)
                for run in page:
                    curves = {
                        key: [
                            (m.step, m.value, float(m.timestamp))
                            for m in client.get_metric_history(run.info.run_id, key)
                        ]
                        for key in run.data.metrics
                    }
                    yield (
                        (str(experiment.experiment_id), experiment.name),
                        _run(
                            run.info.run_id,
                            run.info.run_name or "",
                            run.info.status,
                            (run.info.start_time, run.info.end_time),
                            run.data.params,
                            curves,
                        ),
                    )
                token = page.token
                if not token:
                    break
    except MlflowException as error:
        raise EvidenceError(f"MLflow at {uri} answered: {error}") from error
