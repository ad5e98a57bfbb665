"""The calls of the README: from a study's trials to a plan that has been run, and its outcome."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpo
from hpo.errors import EvidenceError, LaunchError, PlanError
from hpo.extrapolation.inference import posterior
from hpo.planning.launchers.launch import write_plan
from hpo.planning.launchers.local import has_horovod
from hpo.planning.plan import folder_name
from hpo.runs import repository, study_forecast
from hpo.runs.study_plan import baseline_plans
from storage.records import PlanKind
from storage.store import Store
from trainers.private_files import lock_file

pytestmark = pytest.mark.fit

SIX_CARDS = """\
name: six
title: two nodes with three cards each
nodes: 2
accelerators_per_node: 3
accelerator: {name: card, memory_bytes: 16.0e+9, peak_flops: {fp32: 1.0e+13},
              achieved_fraction: {fp32: {low: 0.3, median: 0.4, high: 0.5}}, power_watts: 250}
intra_node: {name: bus, bandwidth_bytes_per_second: 1.0e+10, latency_seconds: 1.0e-6, topology: tree}
inter_node: {name: net, bandwidth_bytes_per_second: 1.0e+10, latency_seconds: 1.0e-6, topology: tree}
shared_filesystem: {name: disks, read_bytes_per_second: 1.0e+10, capacity_bytes: 1.0e+15}
scheduler: slurm
"""
BACKENDS = [
    "torch",
    pytest.param("horovod", marks=pytest.mark.skipif(not has_horovod(), reason="no Horovod here")),
]


def test_a_forecast_knows_the_law_that_the_trials_follow(study):
    forecast = hpo.forecast(study.result, global_batch_size=64)
    epochs = forecast.epochs_to_target
    assert epochs.low < 2 * (1 + 64 / 64) * 1.25 and epochs.high > 2 * (1 + 64 / 64) / 1.25
    assert epochs.low < epochs.median < epochs.high
    assert 0.1 < forecast.settings.learning_rate < 0.8  # the linear rule says 0.32
    assert forecast.settings.normalization_batch_size == 1
    assert forecast.train_samples == pytest.approx(426, rel=0.02)
    assert forecast.samples_per_second == pytest.approx(4260, rel=0.05)
    assert forecast.trust in ("high", "medium", "low") and forecast.reason


@pytest.mark.slow  # tests/extrapolation/test_forecast_recovery.py has the rule
def test_a_forecast_is_the_same_each_time(study):
    first = hpo.forecast(study.result, 64).to_dict()
    study_forecast._fitted.cache_clear()
    assert hpo.forecast(study.result, 64).to_dict() == first


def test_the_same_evidence_is_fitted_once(study, monkeypatch):
    study_forecast._fitted.cache_clear()
    fitted = []

    def fit(evidence, *, rng):
        fitted.append(evidence)
        return posterior.fit(evidence, rng=rng)

    monkeypatch.setattr(study_forecast, "fit", fit)
    first = hpo.fit_posterior(study.result)
    assert hpo.fit_posterior(study.result) is first and len(fitted) == 1
    fewer = dataclasses.replace(study.result, trials=study.result.trials[:-1])
    assert hpo.fit_posterior(fewer) is not first and len(fitted) == 2
    study_forecast._fitted.cache_clear()


@pytest.mark.parametrize("batch", [0, 2**31, 2**64, 10**26])
def test_a_batch_size_that_no_study_may_have_is_refused(study, batch):
    for made in (hpo.forecast, hpo.race):
        with pytest.raises(EvidenceError, match=f"from 1 to 2147483647, .* but got {batch}"):
            made(study.result, batch)


def test_a_plan_carries_the_forecast_and_splits_the_batch(study):
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.make_plan(forecast, workers=2)
    assert (plan.local_batch_size, plan.workers, plan.kind) == (32, 2, PlanKind.FORECAST)
    assert plan.epochs == forecast.epochs_to_target
    assert plan.job.settings == forecast.settings
    assert plan.job.epochs >= 1.5 * plan.epochs.high
    assert plan.job.seed >= study.result.spec.budget.trials  # one that the sweep has not used
    rate = forecast.samples_per_second
    assert plan.seconds.low == pytest.approx(plan.epochs.low * forecast.train_samples / (2 * rate))
    assert plan.seconds.high == pytest.approx(
        4 * plan.epochs.high * forecast.train_samples / (2 * rate)
    )


def test_rules_of_thumb_start_below_the_plan_and_are_run_where_they_differ(study):
    """A search that trains at the batch of the plan itself has settings there that no rule has moved."""
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.make_plan(forecast, workers=2)
    largest = max(trial.global_batch_size for trial in study.result.swept)
    assert largest < 64
    rates = {
        each.kind: each.job.settings.learning_rate for each in baseline_plans(study.result, plan)
    }
    base = rates[PlanKind.NO_SCALING]
    assert rates[PlanKind.LINEAR_SCALING] == pytest.approx(base * 64 / largest)
    assert rates[PlanKind.SQRT_SCALING] == pytest.approx(base * (64 / largest) ** 0.5)

    at = tuple(
        dataclasses.replace(trial, global_batch_size=64)
        for trial in study.result.trials
        if trial.global_batch_size == largest
    )
    both = dataclasses.replace(study.result, trials=(*study.result.trials, *at))
    assert {
        each.kind: each.job.settings.learning_rate for each in baseline_plans(both, plan)
    } == rates
    assert baseline_plans(dataclasses.replace(study.result, trials=at), plan) == []

    alike = next(
        each for each in baseline_plans(study.result, plan) if each.kind is PlanKind.NO_SCALING
    )
    same = dataclasses.replace(plan, job=alike.job)
    assert {each.kind for each in baseline_plans(study.result, same)} == {
        PlanKind.LINEAR_SCALING,
        PlanKind.SQRT_SCALING,
    }


def test_a_plan_takes_as_many_workers_as_accelerators_and_batch_allow(study):
    (study.folder / "machine.yaml").write_text(SIX_CARDS)
    plan = hpo.make_plan(hpo.forecast(study.result, 64), machine="machine.yaml")
    assert (plan.machine, plan.nodes, plan.ranks_per_node, plan.workers) == ("six", 2, 2, 4)
    assert plan.seconds is None and plan.launcher == "slurm"  # nothing was measured there


def test_a_plan_for_another_machine_is_submitted_and_not_launched_here(study, monkeypatch):
    (study.folder / "machine.yaml").write_text(SIX_CARDS)
    forecast, plan = hpo.plan_study(study.result, "machine.yaml")
    assert (
        forecast.to_dict() == hpo.forecast(study.result, 64).to_dict()
    )  # the study's full-scale batch
    assert (plan.global_batch_size, plan.epochs, plan.machine) == (
        64,
        forecast.epochs_to_target,
        "six",
    )
    with pytest.raises(PlanError, match="submits it there; with workers"):
        hpo.launch_here(plan, directory=study.folder / "plan")
    commands = study.folder / "bin"
    commands.mkdir()
    (commands / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\n")
    (commands / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    submitted = hpo.submit_plan(plan, study.folder / "plan")
    assert (submitted.launcher, submitted.job, submitted.folder) == (
        "slurm",
        "Submitted batch job 7",
        study.folder / "plan",
    )
    assert json.loads((study.folder / "plan" / "job.json").read_text())["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("batch", "workers", "nodes", "words"),
    [
        (64, 3, None, "nearest number of workers that divides it is 2"),
        (64, 2, 5, "nodes must be between 1 and 1"),
    ],
)
def test_a_plan_that_cannot_be(study, batch, workers, nodes, words):
    with pytest.raises(PlanError, match=words):
        hpo.make_plan(hpo.forecast(study.result, batch), workers=workers, nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_is_launched_and_its_outcome_stands_beside_the_forecast(study, backend):
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=2), study.folder / "plan")
    points = []

    class Watch(hpo.Progress):
        def run(self, plan, seed, point):
            points.append(point)

    outcomes = hpo.launch(
        plan,
        backend=backend,
        storage=study.storage,
        directory=study.folder / "runs",
        progress=Watch(),
    )
    assert [outcome.state for outcome in outcomes] == ["reached"]
    assert points[-1].metric >= 0.98 and points[-1].epochs == outcomes[0].epochs_to_target
    row = hpo.calibration(study.storage)[0]
    assert row.observed_epochs_mean == outcomes[0].epochs_to_target
    assert (row.predicted_epochs_low, row.predicted_epochs_high) == (
        plan.epochs.low,
        plan.epochs.high,
    )
    assert row.inside is (plan.epochs.low <= row.observed_epochs_mean <= plan.epochs.high)


@pytest.mark.slow
def test_the_script_of_a_plan_runs_and_its_report_is_taken_back(study):
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=1), study.folder / "plan")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", study.folder / "plan" / "launch.sh"],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": path},
    )
    outcome = hpo.record(plan, study.folder / "plan" / "outcome.jsonl", study.storage)
    assert outcome.epochs_to_target == hpo.calibration(study.storage)[0].observed_epochs_mean
    assert (
        hpo.find_plan(str(plan.id), study.storage)
        == hpo.find_plan(str(study.folder / "plan"))
        == plan
    )


def test_storing_the_same_plan_again_gives_the_same_plan(study):
    forecast = hpo.forecast(study.result, 64)
    first = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=2), study.folder / "plan")
    again = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=2), study.folder / "plan")
    other = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=1), study.folder / "plan1")
    assert first.id == again.id != other.id


def test_a_plan_whose_folder_another_run_writes_to_stores_nothing(study, monkeypatch):
    monkeypatch.setattr("hpo.planning.launchers.launch.LOCK_SECONDS", 3600.0)  # nobody waits for it
    forecast, folder = hpo.forecast(study.result, 64), study.folder / "plan"
    plan = hpo.make_plan(forecast, workers=1)
    other = dataclasses.replace(plan.job, global_batch_size=32)
    write_plan(dataclasses.replace(plan, job=other), folder, backend="torch")
    (folder / "checkpoint.pt").write_bytes(b"weights")
    with (folder / "launch.lock").open("ab") as lock, Store.open(study.storage) as store:
        lock_file(lock)
        with pytest.raises(LaunchError, match="another run is writing to"):
            hpo.store_plan(forecast, plan, folder)
        with pytest.raises(LaunchError, match="another run is writing to"):  # as in `hpo run`
            repository.keep_plan(store, forecast, plan, folder, "torch")
        number = store.study("cells").id
        assert store.plans(number) == [] == store.forecasts(number)
    assert hpo.store_plan(forecast, plan, folder).id is not None
    assert (folder / "earlier-1" / "checkpoint.pt").read_bytes() == b"weights"


def test_a_run_that_fails_says_why(study):
    plan = hpo.make_plan(hpo.forecast(study.result, 64), workers=1)
    (study.folder / "cells.py").write_text("raise RuntimeError('broken on purpose')")
    with pytest.raises(LaunchError, match="broken on purpose"):
        hpo.launch(plan, backend="torch", directory=study.folder / "runs")


def test_a_report_without_an_outcome_is_refused(study):
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=1), study.folder / "plan")
    report = study.folder / "outcome.jsonl"
    report.write_text("")
    with pytest.raises(LaunchError, match="has no outcome"):
        hpo.record(plan, report, study.storage)
    report.write_text("{]\n")
    with pytest.raises(LaunchError, match=r"cannot read .*outcome\.jsonl"):
        hpo.record(plan, report, study.storage)


def test_a_study_name_cannot_leave_the_folder_of_plans(study):
    plan = hpo.make_plan(hpo.forecast(study.result, 64), workers=1)
    for name in ("../../etc", "a/b", "..", "<b>"):
        found = folder_name(dataclasses.replace(plan, study=name))
        assert "/" not in found and not found.startswith(".")
    names = {folder_name(dataclasses.replace(plan, study=name)) for name in ("a/b", "a b", "a-b")}
    assert len(names) == 3
    # nor may somebody name a study so that its plans are written over another's
    taken = [name.removesuffix(f"-{plan.global_batch_size}-{plan.kind}") for name in names]
    taken.remove("a-b")
    assert names.isdisjoint(folder_name(dataclasses.replace(plan, study=name)) for name in taken)


def test_plan_json_reads_back(study):
    plan = hpo.make_plan(hpo.forecast(study.result, 64), workers=2)
    assert hpo.Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
