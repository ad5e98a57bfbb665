"""Plans of trainings that take seconds, and a folder of fake programs for the path."""

import importlib
import os
import sys
from pathlib import Path

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.plan import Plan
from hpo.planning.schedulers import SCHEDULERS
from search_spaces.settings import TrainingSettings
from storage.records import PlanKind
from trainers import Target, TrainingJob

ROOT = Path(__file__).parents[2]
FAKES = Path(__file__).parent / "fakes"
SUBMISSIONS = {  # how a person submits a script to each scheduler with a fake
    name: ["bash", "-c", f"{' '.join(its.program)} < launch.sh"]
    if its.reads_script
    else [*its.program, "launch.sh"]
    for name, its in SCHEDULERS.items()
    if (FAKES / f"{name}.py").exists()
}


def fake(scheduler):
    """The module of a scheduler's fakes."""
    return importlib.import_module(f"tests.planning.fakes.{scheduler}")


def small_job(folder, *, batch=32, target=0.95, epochs=40, **data):
    return TrainingJob(
        workload="mortal_workload:Mortal",
        data={"folder": str(folder), **data},
        seed=1,
        target=Target("accuracy", target),
        global_batch_size=batch,
        epochs=epochs,
        settings=TrainingSettings(learning_rate=0.004, normalization_batch_size=1),
        evaluations_per_epoch=1,
        search_path=str(Path(__file__).parent),
    )


def small_plan(job, *, machine="summit", launcher="slurm", nodes=2, ranks=2, **changes):
    values = {
        "epochs": Interval(4.0, 2.0, 8.0),
        "seconds": Interval(400.0, 200.0, 900.0),
        "trust": "medium",
        "reason": "two of three rungs reached the target",
        "id": 7,
        "limited_by": "network",
    }
    return Plan(
        study="small",
        kind=PlanKind.FORECAST,
        machine=machine,
        nodes=nodes,
        workers=nodes * ranks,
        job=job,
        launcher=launcher,
        ranks_per_node=ranks,
        **{**values, **changes},
    )


def fake_path(folder, scheduler, **programs):
    """Return an environment whose path begins with the scheduler's fake programs, and with others by name and text."""
    programs = {
        **{
            name: f'exec "{sys.executable}" -m tests.planning.fakes.{scheduler} {name} "$@"'
            for name in fake(scheduler).PROGRAMS
        },
        **programs,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HPO_")},
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "FAKE_SPOOL": str(folder / "spool"),
    }
