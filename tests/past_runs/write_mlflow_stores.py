"""Writes the MLflow stores that the tests import, with the real library: run it where MLflow is installed.

    python tests/past_runs/write_mlflow_stores.py FOLDER

FOLDER gets ``mlruns`` (MLflow's store of files) and ``mlflow.sql`` (the text of its SQLite database, as
``sqlite3 .dump`` writes it). Both hold the same six runs: three that reach 0.96, one that ends short of it, one that
failed, one whose metric became NaN; and a seventh that was deleted. The files here are of MLflow 3.17.
"""

import math
import os
import sqlite3
import sys
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]

RUNS = [
    {"lr": 0.1, "batch": 32, "top1": [0.5, 0.9, 0.97]},
    {"lr": 0.2, "batch": 64, "top1": [0.4, 0.8, 0.95, 0.965]},
    {"lr": 0.4, "batch": 128, "top1": [0.3, 0.7, 0.9, 0.96]},
    {"lr": 0.01, "batch": 32, "top1": [0.2, 0.3, 0.4]},
    {"lr": 0.3, "batch": 32, "top1": [0.2], "status": "FAILED"},
    {"lr": 9.0, "batch": 64, "top1": [0.2, math.nan]},
    {"lr": 0.1, "batch": 64, "top1": [0.97], "deleted": True},
]


def write(uri):
    client = MlflowClient(uri)
    experiment = client.create_experiment("images")
    for number, run in enumerate(RUNS):
        made = client.create_run(experiment, run_name=f"run {number}", start_time=1_700_000_000_000)
        key = made.info.run_id
        client.log_param(key, "optim/lr", run["lr"])
        client.log_param(key, "batch", run["batch"])
        client.log_param(key, "optimizer", "SGD")
        for epoch, value in enumerate(run["top1"], 1):
            time = 1_700_000_000_000 + 60_000 * epoch
            client.log_metric(key, "val_top1", value, timestamp=time, step=epoch)
        end = 1_700_000_000_000 + 60_000 * len(run["top1"])
        client.set_terminated(key, run.get("status", "FINISHED"), end_time=end)
        if run.get("deleted"):
            client.delete_run(key)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    write((folder / "mlruns").as_uri())
    write(f"sqlite:///{folder}/mlflow.db")
    with sqlite3.connect(folder / "mlflow.db") as connection:
        wanted = ("experiments", "runs", "params", "metrics", "tags")
        lines = [
            line
            for line in connection.iterdump()
            if any(
                line.startswith(
                    (f"CREATE TABLE {name} ", f'CREATE TABLE "{name}"', f'INSERT INTO "{name}"')
                )
                for name in wanted
            )
        ]
    (folder / "mlflow.sql").write_text("\n".join(lines) + "\n")
