"""Where the rules of thumb fail in the main example: python -m benchmarks.rules_of_thumb [--at 512 1024].

Trains the network of examples/digits.yaml at every batch size, learning rate and warmup of a fixed grid, with several
seeds and without a forecast. The full-scale batch of the main example is chosen from this table.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import hpo
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.workloads import load_workload

STUDY = Path(__file__).parent.parent / "examples" / "digits.yaml"
RATES = (0.066, 0.13, 0.264, 0.53, 1.06, 2.1, 4.2)
WARMUPS = (0.4, 3.0)
EPOCHS = 80.0


def main() -> None:
    """Print a table: a row for each rate and warmup, a column for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=int, nargs="+", default=[128, 512, 1024], metavar="BATCH")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| rate | warmup, epochs | " + " | ".join(f"{batch:,}" for batch in asked.at) + " |")
    print("|---|---" + "|---" * len(asked.at) + "|")
    for rate in RATES:
        for warmup in WARMUPS:
            cells = [told(epochs(batch, rate, warmup, asked.seeds)) for batch in asked.at]
            print(f"| {rate:g} | {warmup:g} | " + " | ".join(cells) + " |", flush=True)


def epochs(global_batch_size: int, rate: float, warmup: float, seeds: int) -> list[float]:
    """Return the epochs to target of each seed; inf if it was not reached."""
    spec = hpo.load_study(STUDY)
    workload = load_workload(spec.workload, spec.data)
    settings = TrainingSettings.from_dict(
        {**spec.search.fixed, "learning_rate": rate, "warmup_epochs": warmup}
    )
    found = []
    for seed in range(seeds):
        job = training_job(spec, settings, global_batch_size, seed, epochs=EPOCHS)
        run = begin_training(job, workload=workload)
        while not run.finished:
            run.advance()
        found.append(run.outcome.epochs_to_target or math.inf)
    return found


def told(found: list[float]) -> str:
    """Return the geometric mean of those that reached the target, and the number of lost ones."""
    logs = [math.log(each) for each in found if math.isfinite(each)]
    lost = len(found) - len(logs)
    if not logs:
        return "lost"
    return f"{math.exp(statistics.fmean(logs)):.1f}" + (f", {lost} lost" if lost else "")


if __name__ == "__main__":
    main()
