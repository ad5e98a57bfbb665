"""From a study's trials to the forecast for one batch size, and from that to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpo.errors import EvidenceError
from hpo.extrapolation.calibration import PastForecast
from hpo.extrapolation.forecast import forecast as forecast_from
from hpo.extrapolation.posterior import Posterior, fit
from hpo.extrapolation.stored import study_evidence
from hpo.planning import time_model
from hpo.planning.machines import load_machine
from hpo.planning.plan import Plan, check_workers, most_workers, planned_job
from hpo.results import StudyForecast, StudyResult, best_settings, complete_settings, throughput
from search_spaces.scaling_rules import SCALING_RULES
from storage.records import CalibrationRow, PlanKind

BASELINES = {PlanKind.LINEAR_SCALING: "linear", PlanKind.NO_SCALING: "none"}
"""What a validated forecast is compared with: the best swept settings, moved by these scaling rules."""


def forecast(result: StudyResult, global_batch_size: int, posterior: Posterior | None = None, *,
             budgets: Sequence[float] = ()) -> StudyForecast:
    """Settings and epochs to target at a batch size, from all trials of a study.

    The chance of reaching the target is told for each of ``budgets``, in epochs. Outcomes of earlier plans, of this
    study or others, widen or narrow the interval; those of this study at this very batch size are what the forecast
    is to be compared with, and do not count.

    Raises :class:`EvidenceError` where no trial of the study reached the target, and for a batch size below 1.
    """
    if global_batch_size < 1:
        raise EvidenceError(f"global_batch_size must be at least 1, but got {global_batch_size}")
    best = best_settings(result.trials)
    if best is None:
        raise EvidenceError(f"no trial of study {result.study.name!r} reached its target, so that there are no "
                            "settings to start from; raise budget.epochs_per_trial or widen the ranges under search")
    own = (result.study.name, global_batch_size)
    earlier = [row for row in result.past if (row.study, row.global_batch_size) != own]
    numbers = forecast_from(posterior or fit_posterior(result), global_batch_size, budgets=budgets,
                            past=_past_forecasts(earlier))
    return StudyForecast(spec=result.spec, study_id=result.study.id, numbers=numbers,
                         settings=complete_settings(best.settings, numbers, result.spec.search),
                         train_samples=result.train_samples,
                         samples_per_second=throughput(result.trials, result.train_samples), storage=result.storage)


def _past_forecasts(rows: Sequence[CalibrationRow]) -> list[PastForecast]:
    return [PastForecast(row.predicted_epochs_median, row.predicted_epochs_low, row.predicted_epochs_high,
                         row.observed_epochs_mean if row.reached == row.runs else None, row.inside) for row in rows
            if row.predicted_epochs_median and row.predicted_epochs_low and row.predicted_epochs_high]


def fit_posterior(result: StudyResult) -> Posterior:
    """The laws fitted to a study's trials, for bands and forecasts at many batch sizes."""
    evidence = study_evidence(result.trials, result.spec.search, result.noise_scales)
    return fit(evidence, rng=np.random.default_rng(0))


def make_plan(forecast: StudyForecast, machine: str = "local", nodes: int | None = None,
              workers: int | None = None) -> Plan:
    """A launchable plan for a forecast; ``workers`` is as many as accelerators and batch allow if not given.

    Raises :class:`PlanError` for a machine that is not known, or where the batch cannot be split over the workers.
    """
    target = load_machine(machine)
    nodes = target.nodes if nodes is None else nodes
    epochs, seconds = forecast.epochs_to_target, None
    job = planned_job(forecast.spec, forecast.settings, forecast.global_batch_size, epochs)
    workers = most_workers(job, nodes * target.accelerators_per_node) if workers is None else workers
    check_workers(job, workers, target, nodes)
    if forecast.samples_per_second and target.name == "local":
        seconds = time_model.seconds_to_target(epochs, forecast.train_samples, forecast.samples_per_second, workers)
    return Plan(study=forecast.spec.name, kind=PlanKind.FORECAST, machine=target.name, nodes=nodes, workers=workers,
                job=job, epochs=epochs, seconds=seconds, trust=forecast.trust, reason=forecast.reason)


def baseline_plans(result: StudyResult, plan: Plan) -> list[Plan]:
    """The same run as ``plan`` by rules of thumb: the best settings of the largest rung, moved by each rule."""
    best = best_settings(result.trials)
    if best is None:
        return []
    plans = []
    for kind, rule in BASELINES.items():
        settings = SCALING_RULES[rule](best.settings, best.global_batch_size, plan.global_batch_size)
        plans.append(dataclasses.replace(
            plan, kind=kind, job=planned_job(result.spec, settings, plan.global_batch_size, None),
            epochs=None, seconds=None, trust="", reason=""))
    return plans


def with_forecast(result: StudyResult, posterior: Posterior | None = None) -> StudyResult:
    """The result with the forecast for its full-scale batch, where the study names one and its trials allow it."""
    if result.spec.full_scale is None or best_settings(result.trials) is None:
        return result
    return dataclasses.replace(result, forecast=forecast(result, result.spec.full_scale.global_batch_size, posterior))
