"""Makes a plan for a machine from a forecast."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from hpo.errors import PlanError
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.trust import VERY_FAR
from hpo.planning.launchers.run import STAGING_SECONDS, STARTUP_SECONDS
from hpo.planning.machines import Machine, load_machine, machine_names
from hpo.planning.placement.candidates import HOUR, PlanningContext, scale_interval
from hpo.planning.placement.epochs import (
    EpochsLaw,
    EvenEpochsLaw,
    IntervalEpochsLaw,
    PosteriorEpochsLaw,
)
from hpo.planning.placement.feasibility import check_layout
from hpo.planning.placement.optimise import PlanConstraints, PlanSelection
from hpo.planning.placement.placements import AcceleratorMemory, memory_needs
from hpo.planning.placement.planner import plan_placement, plan_untimed
from hpo.planning.placement.rates import (
    ModelledRates,
    Rates,
    SweepRates,
    measured_rates,
    seconds_to_target,
    step_options,
)
from hpo.planning.placement.tradeoffs import TradeOff
from hpo.planning.placement.tradeoffs import trade_offs as weighed
from hpo.planning.plan import Plan, check_plan_workers, planned_job
from hpo.planning.request import PlanOptions, PlanRequest
from hpo.planning.timing.costs import given_or_measured_cost
from hpo.planning.timing.failures import NodeFailures
from hpo.runs.results import StudyForecast, StudyResult, best_settings
from hpo.runs.study_forecast import forecast, forecast_at, kept_constraints
from hpo.study.jobs import check_sizes_known
from hpo.study.spec import StudySpec
from search_spaces.scaling_rules import SCALING_RULES
from storage.records import PlanKind, Throughput
from trainers.cost import WorkloadCost
from trainers.job import TrainingJob

BASELINES = {
    PlanKind.LINEAR_SCALING: "linear",
    PlanKind.SQRT_SCALING: "sqrt",
    PlanKind.NO_SCALING: "none",
}
"""The baselines for a validated forecast: the best settings of the sweep, scaled by each of these rules."""


def make_plan(
    forecast: StudyForecast,
    machine: str | Machine | None = "local",
    nodes: int | None = None,
    workers: int | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Return the best launchable plan for a forecast; options left at None are chosen. ``options`` are the fields of
    :class:`PlanRequest`.

    Raises :class:`PlanError` for an unknown option (the message names the nearest known one), an unknown machine or
    cost, and an impossible plan (the error gives the nearest possible one).
    """
    return choose_plan(
        forecast, PlanRequest.of(machine=machine, nodes=nodes, workers=workers, **options)
    )[1]


def choose_plan(
    made: StudyForecast, asked: PlanRequest, notes: Sequence[str] = ()
) -> tuple[StudyForecast, Plan]:
    """Return the best plan with its ``notes``, and the forecast at its batch size.

    Raises :class:`SpecError` if the model's sizes cannot be set without the plug-in with the study's workload.
    """
    check_sizes_known(made.spec)
    machine, nodes, workers = asked.machine or "local", asked.nodes, asked.workers
    target = machine if isinstance(machine, Machine) else load_machine(machine)
    if (
        isinstance(asked.global_batch_size, int)
        and asked.global_batch_size != made.global_batch_size
    ):
        made = forecast_at(made, asked.global_batch_size)
    rates, memory = _figures(made, target, asked)
    if asked.global_batch_size != "best":
        check_layout(
            planned_job(made.spec, made.settings, made.global_batch_size, None),
            target,
            nodes,
            workers,
            memory,
        )
    constraints = _constraints(asked, made.global_batch_size)
    context = _context(made, target, rates, memory, asked)
    selection = None if rates is None else plan_placement(context, constraints, notes)
    place = selection.best.placement if selection else plan_untimed(context, constraints)
    if place.global_batch_size != made.global_batch_size:
        made = forecast_at(made, place.global_batch_size)
    job = planned_job(made.spec, made.settings, made.global_batch_size, made.epochs_to_target)
    if memory or constraints.micro_batch_size:
        job = dataclasses.replace(job, micro_batch_size=place.micro_batch_size)
    job = _with_found_micro_batch(job, made.source, place.workers)
    check_plan_workers(job, place.workers, target, place.nodes)
    plan = Plan(
        study=made.spec.name,
        kind=PlanKind.FORECAST,
        machine=target.name,
        nodes=place.nodes,
        workers=place.workers,
        job=job,
        epochs=made.epochs_to_target,
        seconds=None,
        trust=made.trust,
        reason=made.reason,
        ranks_per_node=place.ranks_per_node,
        slot_seconds=constraints.slot_seconds,
        launcher=asked.launcher or target.scheduler,
        best=made.numbers.best,
    )
    plan = plan if selection is None else _timed(plan, made, selection)
    if selection is not None and is_weighed(target.name):
        front = _trade_offs(made, context, constraints)
        plan = dataclasses.replace(
            plan,
            details={**(plan.details or {}), "trade_offs": [each.to_dict() for each in front]},
        )
    if plan.seconds is not None and not math.isfinite(plan.seconds.median + plan.seconds.high):
        raise PlanError(
            f"node_failure_hours must be large enough for a run on {plan.nodes} nodes to "
            f"finish between failures, but got {asked.node_failure_hours:g}; use fewer nodes, "
            f"nodes that fail less often, or more evaluations_per_epoch, as checkpoints are saved at evaluations"
        )
    own_file = (
        None
        if isinstance(machine, Machine) or machine in machine_names()
        else str(Path(machine).absolute())
    )
    return made, dataclasses.replace(
        plan, details={**(plan.details or {}), "machine_file": own_file}
    ) if own_file else plan


def trade_offs(
    forecast: StudyForecast,
    machine: str | Machine | None = None,
    nodes: int | None = None,
    workers: int | None = None,
    **options: Unpack[PlanOptions],
) -> tuple[TradeOff, ...]:
    """Return the Pareto front of time, accelerator hours and epochs (or metric) for a study's run on a machine.

    The front compares the batch sizes that the evidence supports, the possible placements, and at each batch size the
    recommended settings with 0.5, 1 and 2 times their learning rate. The machine defaults to that of the study's
    ``full_scale``, or else to this one. ``options`` are the fields of :class:`PlanRequest`; its batch size, deadline
    and slot are ignored here. The front has at most :data:`hpo.planning.placement.tradeoffs.SHOWN` members, the fastest
    first.

    Raises :class:`PlanError` for an unknown option or machine, for a workload whose speed on the machine is unknown,
    and for a forecast that was read from the storage without its fitted laws.
    """
    full = forecast.spec.full_scale
    asked = PlanRequest.of(
        machine=machine or (full.machine if full else "local"),
        nodes=nodes,
        workers=workers,
        **options,
    )
    named = asked.machine or "local"
    target = named if isinstance(named, Machine) else load_machine(named)
    rates, memory = _figures(forecast, target, asked)
    if rates is None:
        raise PlanError(
            f"the speed of {target.name} for this workload is unknown, so time and cost cannot "
            f"be compared; give the cost of a sample with --cost NAME|FILE"
        )
    if forecast.posterior is None:
        raise PlanError(
            "this forecast was read without its laws, so other batch sizes cannot be compared "
            "with its own; compute it with hpo.forecast"
        )
    context = _context(forecast, target, rates, memory, asked)
    return _trade_offs(forecast, context, _constraints(asked, forecast.global_batch_size))


RATE_FACTORS = (0.5, 2.0)
"""The multiples of the recommended learning rate that the front compares with it."""


def is_weighed(machine: str) -> bool:
    """Return whether the trade-offs on a machine are shown by default. For the local machine they are not: its speed is
    assumed to be the same at every batch size, so the smallest batch is best in all objectives.
    """
    return machine != "local"


def full_scale_trade_offs(made: StudyForecast) -> tuple[TradeOff, ...]:
    """Return the front on the machine of the study's full scale; empty if it is unknown or not shown by default."""
    full = made.spec.full_scale
    if full is None or not is_weighed(full.machine):
        return ()
    with contextlib.suppress(PlanError):
        return trade_offs(made, nodes=full.nodes, workers=full.workers)
    return ()


def _trade_offs(
    made: StudyForecast, context: PlanningContext, constraints: PlanConstraints
) -> tuple[TradeOff, ...]:
    """Return the front over all batch sizes, within the requested nodes and workers; empty without fitted laws."""
    if made.posterior is None:
        return ()
    kept = kept_constraints(made.source) if made.source else None
    knows_rate = RATE in made.posterior.tuned and made.posterior.knows_cost(RATE)
    law = PosteriorEpochsLaw(made.posterior, made.numbers.calibration.scale, kept=kept)
    laws = [law, *(law.at_rate(factor) for factor in (RATE_FACTORS if knows_rate else ()))]
    free = dataclasses.replace(
        constraints, global_batch_size=None, deadline_seconds=None, slot_seconds=None
    )
    question = made.spec.question
    return weighed(context, free, laws, question if question.fixed else None)


def _figures(
    made: StudyForecast, target: Machine, asked: PlanRequest
) -> tuple[Rates | None, AcceleratorMemory | None]:
    """Return the workload's speed on the machine and its memory needs; either is None if unknown."""
    figures = given_or_measured_cost(made.source.cost if made.source else None, asked.cost)
    memory = (
        None
        if figures is None or (target.name == "local" and target.computes_on_cores)
        else memory_needs(figures, made.settings, target.accelerator.memory_bytes)
    )
    return _rates(made, target, figures, asked.cost), memory


def _context(
    made: StudyForecast,
    target: Machine,
    rates: Rates | None,
    memory: AcceleratorMemory | None,
    asked: PlanRequest,
) -> PlanningContext:
    if not made.train_samples:
        raise PlanError(
            f"a plan needs the number of samples per epoch, which no trial of study {made.spec.name} gives; import the "
            f"runs with their curves, run one trial (`hpo run`), or give train_samples in the study's file"
        )
    return PlanningContext(
        target,
        law_of(made),
        rates or SweepRates(1.0),
        made.train_samples,
        made.settings.normalization_batch_size,
        memory,
        _overhead(made.spec, target),
        NodeFailures(asked.node_failure_hours) if asked.node_failure_hours is not None else None,
        made.spec.budget.evaluations_per_epoch,
        saves_at_evaluations=made.spec.program is None,
    )


def _with_found_micro_batch(
    job: TrainingJob, result: StudyResult | None, workers: int
) -> TrainingJob:
    """Reduce the job's micro batch to the size that the trials of a program found to fit in memory.

    The size comes from the largest rung at which one was found, because what fits in one worker's memory does not
    depend on the global batch size.
    """
    program = result.spec.program if result else None
    if result is None or program is None or program.out_of_memory is None:
        return job
    found = [
        (trial.global_batch_size, -trial.micro_batch_size)
        for trial in result.trials
        if trial.micro_batch_size
    ]
    if not found:
        return job
    size = -max(found)[1]
    split = program.options.split(job.global_batch_size, workers, size)
    micro = min(split["micro_batch_size"], job.micro_batch_size or size)
    return dataclasses.replace(job, micro_batch_size=micro)


def plan_study(
    result: StudyResult,
    machine: str | Machine | None = None,
    nodes: int | None = None,
    workers: int | None = None,
    **options: Unpack[PlanOptions],
) -> tuple[StudyForecast, Plan]:
    """Return the best plan for a study, and its forecast; options left at None come from the study's full scale, or are
    chosen.

    ``options`` are the fields of :class:`PlanRequest`. The default batch size is the study's full-scale batch size,
    unless it is too small for the nodes. Raises :class:`PlanError` like :func:`make_plan`, and :class:`EvidenceError`
    without a forecast.
    """
    return plan_as_asked(
        result, PlanRequest.of(machine=machine, nodes=nodes, workers=workers, **options)
    )


def plan_as_asked(result: StudyResult, request: PlanRequest) -> tuple[StudyForecast, Plan]:
    """Plan like :func:`plan_study`, for an existing request."""
    full, notes = result.spec.full_scale, list[str]()
    if request.machine is None:
        request = dataclasses.replace(request, machine=full.machine if full else "local")
    if (
        full
        and full.machine == request.machine
        and request.nodes is request.workers is request.ranks_per_node is None
    ):
        request = dataclasses.replace(request, nodes=full.nodes, workers=full.workers)
    at = full.global_batch_size if full else 2 * max(result.spec.ladder)
    made = forecast(
        result, request.global_batch_size if isinstance(request.global_batch_size, int) else at
    )
    unit = made.settings.normalization_batch_size
    too_small = (request.nodes or 0) * (request.ranks_per_node or 1) * unit > at
    if request.global_batch_size is None and (full is None or too_small):
        request = dataclasses.replace(request, global_batch_size="best")
        notes = (
            [
                f"the study's full-scale batch of {at} is too small for {request.nodes} nodes "
                f"in normalization batches of {unit}: another batch size was chosen"
            ]
            if full
            else []
        )
    return choose_plan(made, request, notes)


def _constraints(asked: PlanRequest, global_batch_size: int) -> PlanConstraints:
    """Return the request's constraints for the optimiser, in seconds; the batch size is fixed unless it is ``best``."""
    deadline, slot = (
        None if hours is None else hours * HOUR
        for hours in (asked.deadline_hours, asked.slot_hours)
    )
    return PlanConstraints(
        minimise=asked.minimise,
        nodes=asked.nodes,
        workers=asked.workers,
        ranks_per_node=asked.ranks_per_node,
        global_batch_size=None if asked.global_batch_size == "best" else global_batch_size,
        micro_batch_size=asked.micro_batch_size,
        deadline_seconds=deadline,
        slot_seconds=slot,
        chance=asked.chance,
    )


def law_of(made: StudyForecast) -> EpochsLaw:
    """Return the law for the number of epochs at any batch size, or only at the forecast's batch size if the fitted
    laws are missing.

    With a fixed budget, the number of epochs is the same at all batch sizes that the evidence covers.
    """
    if made.numbers.best is not None:
        batches = made.posterior.evidence.batches if made.posterior else [made.global_batch_size]
        return EvenEpochsLaw(
            made.numbers.best.epochs,
            divergence=made.numbers.divergence or 0.0,
            supported=(int(batches[0]), int(VERY_FAR * batches[-1])),
            swept=int(batches[-1]),
        )
    if made.posterior is None:
        return IntervalEpochsLaw(
            made.global_batch_size, made.epochs_to_target, made.numbers.divergence or 0.0
        )
    kept = kept_constraints(made.source) if made.source else None
    return PosteriorEpochsLaw(made.posterior, made.numbers.calibration.scale, kept=kept)


def _timed(plan: Plan, made: StudyForecast, selection: PlanSelection) -> Plan:
    """Add the cost to the plan. If only the ends of the speed's interval are known, as for the CPU cores of this
    machine, they are combined with the ends of the epochs' interval; otherwise the time is given by the quantiles of
    the joint distribution.
    """
    candidate, seconds = selection.best, selection.best.seconds
    if plan.machine == "local" and plan.epochs:
        seconds = seconds_to_target(
            plan.epochs, made.train_samples, candidate.rate.samples_per_second
        )
    hours = scale_interval(seconds, candidate.accelerators / HOUR)
    watts = candidate.power_watts
    return dataclasses.replace(
        plan,
        seconds=seconds,
        accelerator_hours=hours,
        energy_kwh=None if watts is None else scale_interval(hours, watts / 1000),
        chance_in_slot=None
        if plan.slot_seconds is None
        else candidate.chance_within(plan.slot_seconds),
        limited_by=selection.limited_by,
        details=dict(selection.details),
    )


def _rates(
    made: StudyForecast,
    machine: Machine,
    figures: WorkloadCost | None,
    cost: str | WorkloadCost | None,
) -> Rates | None:
    """Return the speeds measured for this workload on the machine, or else those of the time model; on the local
    machine, return the speeds measured in the sweep.
    """
    if machine.name == "local":
        if not made.samples_per_second:
            return None
        host = figures.host_seconds_per_sample if figures else 0.0
        return SweepRates(made.samples_per_second, host, made.spec.resources.cpus_per_worker)
    rows = [
        row
        for row in (made.source.throughputs if made.source else ())
        if row.machine == machine.name
        and row.precision in ("", made.settings.precision)
        and _is_of(row, made.spec, cost)
    ]
    modelled = ModelledRates(machine, figures, step_options(made.settings)) if figures else None
    return measured_rates(rows, machine, modelled) or modelled


def _is_of(row: Throughput, spec: StudySpec, cost: str | WorkloadCost | None) -> bool:
    """Return whether a throughput was measured with the workload of ``cost`` or, without one, with the study's
    workload.

    Outcomes of other studies do not count, as studies of the same workload may train models of different sizes.
    """
    if cost is not None:
        return row.workload == cost
    return row.workload == spec.workload and (
        not row.source.startswith("outcome ") or row.source.endswith(f", {spec.name}")
    )


def _overhead(spec: StudySpec, machine: Machine) -> float:
    """Return the seconds that pass in a slot before the first update, as the launch scripts assume; 0 on the local
    machine.
    """
    if machine.name == "local":
        return 0.0
    stages = machine.node_storage is not None and "path" in spec.data
    return float(STARTUP_SECONDS + (STAGING_SECONDS if stages else 0))


def baseline_plans(result: StudyResult, plan: Plan) -> list[Plan]:
    """Return the run of ``plan`` with settings by rules of thumb: each rule scales up the best settings of the largest
    rung below it.

    A rule that gives the same settings as ``plan`` is left out; the list is empty if nothing smaller was trained.
    """
    smaller = [trial for trial in result.swept if trial.global_batch_size < plan.global_batch_size]
    best = best_settings(smaller, result.spec.question)
    if best is None:
        return []
    plans = []
    for kind, rule in BASELINES.items():
        settings = SCALING_RULES[rule](
            best.settings, best.global_batch_size, plan.global_batch_size
        )
        job = planned_job(result.spec, settings, plan.global_batch_size, None)
        if job.settings == plan.job.settings:
            continue
        job = _with_found_micro_batch(job, result, plan.workers)
        plans.append(
            dataclasses.replace(
                plan,
                kind=kind,
                job=job,
                epochs=None,
                best=None,
                seconds=None,
                trust="",
                reason="",
                slot_seconds=None,
                chance_in_slot=None,
                limited_by="",
                accelerator_hours=None,
                energy_kwh=None,
                details=None,
            )
        )
    return plans
