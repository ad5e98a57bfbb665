"""The overhead of a trial beyond its training: a sweep on one core against the same trainings in a plain loop.

The sweep's time runs from the start of its first trial to the end of its last, according to the database: it includes
sampling, Ray Tune, recording and checkpoints, but not starting Ray. The loop then trains the same settings for
the same epochs with the same trainer, in this process. Both use one core, one after the other.

    python benchmarks/trial_overhead.py [--trials N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import ray
import torch

import hpo
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.workloads import load_workload

STUDY = """\
name: overhead
workload: resnet
data: {{source: digits}}
target: {{metric: top1, at_least: 0.999}}
ladder: [64, 128]
search:
  learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}
  warmup_epochs: {{uniform: [0, 2], role: scaled}}
budget: {{trials: {trials}, epochs_per_trial: 4}}
"""


def main() -> None:
    """Print the overhead per trial of each round, and the median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    overheads = []
    print(
        "round  trials  sweep s  loop s  overhead s/trial     (without the first trial, which loads torch)"
    )
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            sweep, loop = measure(Path(folder), options.trials)
        overheads.append((sweep - loop) / (options.trials - 1))
        print(
            f"{number:5}  {options.trials:6}  {sweep:7.2f}  {loop:6.2f}  {overheads[-1]:16.4f}",
            flush=True,
        )
    print(f"median overhead {statistics.median(overheads):.4f} s per trial")


def measure(folder: Path, trials: int) -> tuple[float, float]:
    """Return the seconds of a sweep and of a plain loop over the same trainings."""
    spec = hpo.parse_study(STUDY.format(trials=trials))
    result = hpo.run_study(spec, f"sqlite:///{folder}/hpo.db", folder=folder / "work")
    starts = [trial.started_at for trial in result.trials if trial.started_at]
    ends = [trial.finished_at for trial in result.trials if trial.finished_at]
    # the first trial also loads torch and the data in its actor, once for all trials
    first = min(result.trials, key=lambda trial: trial.started_at or max(starts))
    sweep = (max(ends) - (first.finished_at or min(ends))).total_seconds()

    workload = load_workload(spec.workload, dict(spec.data))
    started = time.perf_counter()
    for trial in result.trials:
        if trial.id == first.id:
            continue
        job = training_job(
            spec, TrainingSettings.from_dict(trial.settings), trial.global_batch_size, trial.seed
        )
        training = begin_training(job, workload=workload)
        while not training.finished and training.progress.step < (trial.steps or 0):
            training.advance()
    return sweep, time.perf_counter() - started


if __name__ == "__main__":
    main()
