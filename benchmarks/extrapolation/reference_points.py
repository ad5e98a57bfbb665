"""Generates reference_points.csv, the table of facts, from MLPerf's reference points.

    python -m benchmarks.extrapolation.reference_points reference_convergence.csv

The input has a row per benchmark and batch size with the settings as JSON; the output keeps what extrapolation
uses, under the names of TrainingSettings. Source: MLCommons' logging repository (mlcommons/logging,
mlperf_logging/rcp_checker), Apache-2.0; "MLPerf" is a trademark of MLCommons; not verified by MLCommons in this form.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).with_name("reference_points.csv")
COLUMNS = (
    "series",
    "global_batch_size",
    "epochs_to_target",
    "unit",
    "runs",
    "sd",
    "learning_rate",
    "warmup_epochs",
    "momentum",
    "weight_decay",
    "normalization_batch_size",
    "source",
)
NAMES = {
    "learning_rate": ("opt_base_learning_rate", "opt_lr"),
    "warmup_epochs": ("opt_learning_rate_warmup_epochs",),
    "momentum": ("opt_momentum",),
    "normalization_batch_size": ("model_bn_span",),
    "weight_decay": ("opt_weight_decay", "opt_lamb_weight_decay_rate"),
}
DEEPCAM_SAMPLES = 121_266  # training samples, according to every DeepCAM log


def fact(row: Mapping[str, str]) -> dict[str, Any]:
    """Return one row of the table of facts."""
    hyperparameters = json.loads(row["hyperparams"])
    settings = {
        name: next((hyperparameters[key] for key in keys if key in hyperparameters), "")
        for name, keys in NAMES.items()
    }
    batch = int(float(row["batch_size"]))
    if row["benchmark"] == "deepcam":
        settings["warmup_epochs"] = round(
            hyperparameters["scheduler_lr_warmup_steps"] * batch / DEEPCAM_SAMPLES, 3
        )
    return {
        "series": row["benchmark"],
        "global_batch_size": batch,
        "epochs_to_target": f"{float(row['epochs_mean']):.6g}",
        "unit": row["unit"].split()[0],
        "runs": row["n"],
        "sd": f"{float(row['epochs_sd']):.4g}",
        **settings,
        "source": f"mlcommons/logging {row['round']} {row['rcp_id']}",
    }


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="reference_convergence.csv")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    with arguments.source.open(newline="") as file:
        facts = [fact(row) for row in csv.DictReader(file)]
    facts.sort(key=lambda row: (row["series"], row["global_batch_size"]))
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(facts)
    print(f"{len(facts)} facts in {arguments.output}")


if __name__ == "__main__":
    main()
