"""A small study with a known law, written through the store, for the tests of the dashboard."""

from __future__ import annotations

from typing import Any

import yaml

from hpo.dashboard.view import StudyView, load_study_view
from hpo.runs import api
from search_spaces.settings import TrainingSettings
from storage.records import (
    ConvergencePoint,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewStudy,
    NewTrial,
    PlanKind,
    StudyState,
    TrialResult,
    TrialState,
    Trust,
)
from storage.store import Store

LADDER = (16, 32, 64, 128)
FULL_SCALE = 256
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
SPEC: dict[str, Any] = {
    "name": "small",
    "workload": "resnet",
    "target": {"metric": "top1", "at_least": 0.9},
    "ladder": list(LADDER),
    "full_scale": {"global_batch_size": FULL_SCALE, "workers": 2},
    "search": {
        "learning_rate": {"log_uniform": [0.01, 1.28], "role": "scaled"},
        "momentum": 0.9,
        "nesterov": {"choice": [True, False]},
    },
    "budget": {"trials": 50, "epochs_per_trial": 40},
    "seeds": 2,
    "sampler": "tpe",
}
OUTCOMES = {
    PlanKind.FORECAST: (18.0, 20.0),
    PlanKind.LINEAR_SCALING: (25.0, None),
    PlanKind.NO_SCALING: (30.0, 32.0),
}
"""Epochs to target of each launch; None for the one that the budget ended."""


def epochs_at(batch: int, rate: float, seed: int) -> float:
    """Return 5 (1 + B / 100) epochs at the best rate, B / 320; more at other rates; a little scatter between seeds."""
    miss = abs(TrainingSettings(learning_rate=rate).learning_rate / (batch / 320) - 1)
    return 5 * (1 + batch / 100) * (1 + 0.3 * miss) * (1.0 + 0.04 * seed)


def url_of(folder: Any) -> str:
    return f"sqlite:///{folder}/small.db"


def make_study(
    store: Store, state: StudyState = StudyState.FINISHED, message: str = "", **changes: Any
) -> int:
    """An empty study; returns its id."""
    spec = yaml.safe_dump({**SPEC, **changes}, sort_keys=False)
    made = api.parse_study(spec)
    study = store.create_study(
        NewStudy(
            name=made.name,
            workload=made.workload,
            metric=made.target.metric,
            spec=spec,
            threshold=made.target.threshold,
            higher_is_better=made.target.higher_is_better,
        )
    )
    store.set_study_state(study.id, state, message)
    return study.id


def add_trial(
    store: Store, study_id: int, batch: int, rate: float, seed: int, result: TrialResult | None
) -> int:
    """One trial with three points of convergence, unless it is still queued; returns its id."""
    settings = TrainingSettings(learning_rate=rate).to_dict()
    trial = store.add_trials(
        study_id, [NewTrial(global_batch_size=batch, seed=seed, settings=settings)]
    )[0]
    if result is not None:
        store.start_trials([trial.id])
        store.finish_trial(trial.id, result, make_points(batch, result.epochs or 0.0))
    return trial.id


def make_points(batch: int, epochs: float) -> list[ConvergencePoint]:
    return [
        ConvergencePoint(
            step=step,
            samples=step * batch,
            epochs=epochs * step / 3,
            seconds=1.0 * step,
            train_loss=1.0,
            loss=1.0,
            metric=0.3 * step,
            learning_rate=0.1,
            global_batch_size=batch,
        )
        for step in (1, 2, 3)
        if epochs
    ]


def reached(epochs: float) -> TrialResult:
    return TrialResult(
        state=TrialState.REACHED,
        epochs_to_target=epochs,
        epochs=epochs + 0.5,
        steps=100,
        seconds=10.0,
        best_metric=0.91,
        final_metric=0.91,
        resolution_epochs=0.25,
    )


def ended(state: TrialState, epochs: float | None, reason: str = "") -> TrialResult:
    return TrialResult(
        state=state, epochs=epochs, steps=10, seconds=2.0, best_metric=0.5, reason=reason
    )


def fill(store: Store, study_id: int) -> None:
    """Add trials that reached the target by the known law, and one trial for each other way to end."""
    for batch in LADDER:
        for rate in RATES:
            for seed in (0, 1):
                add_trial(store, study_id, batch, rate, seed, reached(epochs_at(batch, rate, seed)))
    add_trial(store, study_id, 16, 0.011, 0, ended(TrialState.CENSORED, 40.0, "the budget ended"))
    add_trial(store, study_id, 32, 0.012, 0, ended(TrialState.PRUNED, 4.0, "half did better"))
    add_trial(
        store, study_id, 64, 1.27, 0, ended(TrialState.DIVERGED, 1.5, "the loss <b>blew up</b>")
    )
    add_trial(
        store, study_id, 64, 1.26, 0, ended(TrialState.DIVERGED, None, "the loss is not a number")
    )
    add_trial(store, study_id, 128, 0.5, 0, ended(TrialState.FAILED, 3.0, "out of memory"))
    add_trial(store, study_id, 128, 0.6, 0, None)


def add_plans(store: Store, study_id: int) -> None:
    """A forecast, its plan and two rules of thumb, each launched twice."""
    forecast = store.add_forecast(
        NewForecast(
            study_id=study_id,
            global_batch_size=FULL_SCALE,
            epochs_median=18.0,
            epochs_low=15.0,
            epochs_high=22.0,
            trust=Trust.HIGH,
            reason="2 times the largest rung",
        )
    )
    for kind, epochs in OUTCOMES.items():
        own = kind is PlanKind.FORECAST
        plan = store.add_plan(
            NewPlan(
                study_id=study_id,
                forecast_id=forecast.id if own else None,
                kind=kind,
                machine="local",
                nodes=1,
                workers=2,
                global_batch_size=FULL_SCALE,
                local_batch_size=128,
                directory="plans/small",
                settings=TrainingSettings(learning_rate=0.7 if own else 0.9).to_dict(),
                epochs_median=18.0 if own else None,
                epochs_low=15.0 if own else None,
                epochs_high=22.0 if own else None,
                trust=Trust.HIGH if own else None,
            )
        )
        for seed, took in enumerate(epochs):
            state = TrialState.REACHED if took else TrialState.CENSORED
            store.add_outcome(
                NewOutcome(
                    plan_id=plan.id,
                    seed=seed + 2,
                    backend="torch",
                    workers=2,
                    state=state,
                    epochs_to_target=took,
                    epochs=took or 60.0,
                    seconds=30.0,
                )
            )


def full_view(folder: Any) -> StudyView:
    """The study with all its trials, plans and outcomes, read back."""
    with Store.open(url_of(folder)) as store:
        study_id = make_study(store)
        fill(store, study_id)
        add_plans(store, study_id)
    return load_study_view("small", url_of(folder))
