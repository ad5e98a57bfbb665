"""Studies and stores shared by the tests of the import."""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path

from hpo.past_runs.past_run import PastRun, Reading
from hpo.study.spec import StudySpec, parse_study

HERE = Path(__file__).parent

STUDY = """\
name: images
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.96}
ladder: [32, 64, 128]
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.001, 1], role: scaled}
  momentum: 0.9
budget: {trials: 6, epochs_per_trial: 10}
"""


def spec() -> StudySpec:
    return parse_study(STUDY)


def run(top1, *, lr=0.1, batch=32, status="finished", label="run 1", **values) -> PastRun:
    """A run whose metric is logged once an epoch, by updates of a set of 320 samples."""
    updates = 320 // batch
    curve = [Reading(updates * epoch, value, 2.0 * epoch) for epoch, value in enumerate(top1, 1)]
    told = {"learning_rate": lr, "global_batch_size": batch, **values}
    return PastRun(label=label, values=told, curves={"top1": curve}, status=status)


def mlflow_folder(folder: Path) -> Path:
    """The store of files that MLflow wrote."""
    with zipfile.ZipFile(HERE / "mlruns.zip") as archive:
        archive.extractall(folder)
    return folder / "mlruns"


def mlflow_database(folder: Path) -> Path:
    """The tables of the SQLite database that MLflow wrote."""
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.executescript((HERE / "mlflow.sql").read_text())
    connection.close()
    return folder / "mlflow.db"
