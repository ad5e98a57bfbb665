"""The maximum cost of a study, computed before it runs: trials, samples, and hours on this machine.

The counts are upper bounds derived from the study file, for which every trial runs to the end of its budget. Trials
that reach the target, diverge or fall behind end earlier. The time comes from a few timed updates at every rung.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import TuningError
from hpo.planning.machines import local
from hpo.runs.checks import check_workload
from hpo.runs.results import SHARE_OF_SWEEP
from hpo.study.jobs import some_settings, training_job
from hpo.study.price import StudyPrice
from hpo.study.program import PROGRAM
from hpo.study.samplers import SAMPLERS
from hpo.study.sizes import budgets_by_sizes, cost_share_of_sizes, length_share
from hpo.study.spec import StudySpec
from hpo.tuning.resources import TrialResources
from trainers.json_text import json_text

if TYPE_CHECKING:
    from trainers.workloads import AnyWorkload

SECONDS_PER_RUNG, SECONDS_FOR_ALL = 0.3, 60.0
ACCELERATORS = 0
"""Pseudo batch size that marks the line with the number of accelerators in the timing process's output."""


def study_price(
    spec: StudySpec,
    workload: AnyWorkload | None = None,
    *,
    timed: bool = True,
    seconds: float = SECONDS_FOR_ALL,
) -> StudyPrice:
    """Return an upper bound on the cost of ``spec``; with ``timed``, first time a few updates here for at most
    ``seconds``.

    ``workload`` is the study's workload, if its data is already open. Raises :class:`~hpo.errors.SpecError` if the
    workload is not given and cannot be opened.
    """
    workload = workload or check_workload(spec)
    counted = _counted(spec, workload.train_samples)
    if not timed:
        return counted
    if workload.simulated:
        return replace(
            counted, reason="its trials are simulated, at thousands of epochs per second"
        )
    if spec.workload == PROGRAM:
        return replace(
            counted, reason="the time that a program takes is known only after its first trial"
        )
    told, reason = _timed(spec, seconds)
    machine = {"CPU": float(local.cores()), "GPU": float(told.pop(ACCELERATORS, 0))}
    try:
        resources = TrialResources.of(spec, [machine])
        counted = replace(counted, trials_at_once=resources.concurrent([machine]))
    except TuningError as error:
        return replace(counted, reason=str(error))
    if not told:
        return replace(counted, reason=reason)
    return _with_times(counted, spec, told, workers=resources.workers_per_node * resources.nodes)


def _counted(spec: StudySpec, train_samples: int) -> StudyPrice:
    budget = spec.budget
    lengths = [
        rung.trainings * length_share(spec, point)
        for point, rungs in budgets_by_sizes(spec).items()
        for rung in rungs.values()
    ]
    sweep = round(math.fsum(lengths) * spec.budget.epochs_per_trial * train_samples)
    race = 0
    if spec.race_batch is not None and not SAMPLERS[spec.sampler].chooses_rung:
        costly = [
            rung.trainings * (cost_share_of_sizes(spec, point) if spec.sizes else 1.0)
            for point, rungs in budgets_by_sizes(spec).items()
            for rung in rungs.values()
        ]
        cost = math.fsum(costly) * spec.budget.epochs_per_trial * train_samples
        race = round(SHARE_OF_SWEEP * cost) if budget.race is None else budget.race
    return StudyPrice(
        trials=budget.trials,
        epochs_per_trial=budget.epochs_per_trial,
        train_samples=train_samples,
        sweep_samples=sweep,
        race_samples=race,
    )


def _with_times(
    counted: StudyPrice, spec: StudySpec, speeds: Mapping[int, float], *, workers: int
) -> StudyPrice:
    """Add seconds to the price; a rung that was not timed gets the seconds per sample of the nearest timed rung."""

    def seconds_per_sample(batch: int) -> float:
        return speeds[min(speeds, key=lambda each: abs(math.log(each / batch)))] / workers

    samples = counted.epochs_per_trial * counted.train_samples
    sweep = sum(
        rung.trainings * samples * cost_share_of_sizes(spec, point) * seconds_per_sample(batch)
        for point, rungs in budgets_by_sizes(spec).items()
        for batch, rung in rungs.items()
    )
    return replace(
        counted,
        seconds_per_sample=dict(speeds),
        sweep_seconds=sweep / min(counted.trials_at_once or 1, counted.trials),
        race_seconds=counted.race_samples * seconds_per_sample(max(spec.ladder)),
    )


def _timed(spec: StudySpec, seconds: float) -> tuple[dict[int, float], str]:
    """Return the seconds per sample by rung, with the number of accelerators under ``ACCELERATORS``, and any error."""
    settings = some_settings(spec)
    jobs = [training_job(spec, settings, batch, 0).to_dict() for batch in spec.ladder]
    with tempfile.TemporaryDirectory(prefix="hpo-speed-") as folder:
        jobs_file, out, err = (Path(folder, name) for name in ("jobs.json", "out", "err"))
        jobs_file.write_text(json_text(jobs), encoding="utf-8")
        reason = "a few updates could not be trained here"
        with out.open("w") as told, err.open("w") as wrong:
            try:
                subprocess.run(
                    [sys.executable, "-m", "trainers.speed", str(jobs_file), str(SECONDS_PER_RUNG)],
                    stdout=told,
                    stderr=wrong,
                    check=False,
                    timeout=seconds,
                )
            except subprocess.TimeoutExpired:
                reason = f"a few updates take longer than {seconds:g} s here"
        last = (err.read_text("utf-8", "replace").strip().splitlines() or [""])[-1]
        lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    found = {batch: value for batch, value in lines if math.isfinite(value)}
    return found, f"{reason}: {last}" if last else reason
