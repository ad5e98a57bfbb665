"""Values that the tests of the store write, and processes that write them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from search_spaces.settings import TrainingSettings
from storage.records import (
    ConvergencePoint,
    Law,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewStudy,
    NewTrial,
    PlanKind,
    SettingForecast,
    StoredForecast,
    Study,
    SubmittedStudy,
    Trial,
    TrialState,
    Trust,
    WorkloadCost,
)
from storage.store import Store

SETTINGS = TrainingSettings().to_dict()
OTHER_SETTINGS = TrainingSettings(
    optimizer="lars",
    learning_rate=1 / 3,
    nesterov=True,
    decay="step",
    decay_milestones=(30.0, 0.1 + 60, 80),
    decay_epochs=90.5,
    warmup_epochs=5,
    normalization_batch_size=64,
).to_dict()


COST = WorkloadCost(
    parameters=25_557_032,
    gradient_tensors=161,
    flops_per_sample=2.4e10,
    activation_bytes_per_sample=1.1e8,
    sample_bytes=1.2e5,
    host_seconds_per_sample=0.0037,
    evaluation_samples=50_000,
)


def make_study(store: Store, name: str = "digits", spec: str = "name: digits\n") -> Study:
    return store.create_study(
        NewStudy(
            name=name,
            workload="resnet",
            metric="top1",
            threshold=0.96,
            higher_is_better=True,
            spec=spec,
        )
    )


def submit(store: Store, name: str, spec: str = "name: digits\n", **options: Any) -> SubmittedStudy:
    return store.submit_study(
        NewStudy(
            name=name,
            workload="resnet",
            metric="top1",
            threshold=0.96,
            higher_is_better=True,
            spec=spec,
            **options,
        )
    )


def make_trials(
    store: Store,
    study: Study,
    *global_batch_sizes: int,
    purpose: str = "sweep",
    first_seed: int = 0,
) -> list[Trial]:
    return store.add_trials(
        study.id,
        [
            NewTrial(global_batch_size=size, seed=seed, settings=SETTINGS, purpose=purpose)
            for seed, size in enumerate(global_batch_sizes, first_seed)
        ],
    )


def make_points(count: int, first_step: int = 0) -> list[ConvergencePoint]:
    return [
        ConvergencePoint(
            step=step,
            samples=32 * step,
            epochs=step / 7,
            seconds=0.1 * step,
            train_loss=1 / (1 + step),
            loss=2 / (1 + step),
            metric=step / (step + 1),
            learning_rate=0.1,
            global_batch_size=32,
            gradient_noise_scale=100.0 + step,
        )
        for step in range(first_step, first_step + count)
    ]


def make_forecast(store: Store, study: Study, **changes: Any) -> StoredForecast:
    values: dict[str, Any] = {
        "study_id": study.id,
        "global_batch_size": 512,
        "epochs_median": 10.0,
        "epochs_low": 8.0,
        "epochs_high": 13.0,
        "trust": Trust.MEDIUM,
        "reason": "4 times the largest rung",
        "settings": (
            SettingForecast("warmup_epochs", 2.0, 1.0, 3.0),
            SettingForecast("learning_rate", 0.3, 0.2, 0.5),
        ),
        "laws": (
            Law("epochs", "minimum", 4.0, 3.5, 4.5),
            Law("epochs", "critical_batch_size", 250.0, 150.0, 400.0),
        ),
    }
    return store.add_forecast(NewForecast(**values | changes))


def new_plan(study: Study, **changes: Any) -> NewPlan:
    values: dict[str, Any] = {
        "study_id": study.id,
        "kind": PlanKind.LINEAR_SCALING,
        "machine": "local",
        "nodes": 1,
        "workers": 2,
        "global_batch_size": 512,
        "local_batch_size": 256,
        "settings": OTHER_SETTINGS,
        "directory": "plans/1",
    }
    return NewPlan(**values | changes)


def forecast_plan(study: Study, forecast: StoredForecast, **changes: Any) -> NewPlan:
    values: dict[str, Any] = {
        "kind": PlanKind.FORECAST,
        "forecast_id": forecast.id,
        "epochs_median": forecast.epochs_median,
        "epochs_low": forecast.epochs_low,
        "epochs_high": forecast.epochs_high,
        "seconds_median": 60.0,
        "seconds_low": 50.0,
        "seconds_high": 80.0,
        "trust": forecast.trust,
        "micro_batch_size": 64,
    }
    return new_plan(study, **values | changes)


def new_outcome(plan_id: int, **changes: Any) -> NewOutcome:
    values: dict[str, Any] = {
        "plan_id": plan_id,
        "seed": 1,
        "backend": "horovod",
        "workers": 2,
        "state": TrialState.REACHED,
        "epochs_to_target": 9.0,
        "epochs": 9.5,
        "seconds": 66.0,
        "best_metric": 0.97,
        "reason": "",
    }
    return NewOutcome(**values | changes)


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python with the paths of this process."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def sweep(url: str, study: str, count: int, points: int) -> subprocess.Popen[str]:
    """Start a process that adds, records and finishes trials."""
    return python(
        str(Path(__file__).with_name("store_worker.py")), url, study, str(count), str(points)
    )


def claimers(url: str, count: int, mode: str, **options: Any) -> list[subprocess.Popen[str]]:
    """Start processes that claim studies, all at the same moment."""
    program = str(Path(__file__).with_name("claim_worker.py"))
    workers = [
        python(program, url, f"worker {number}", mode, stdin=subprocess.PIPE, **options)
        for number in range(count)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return workers
