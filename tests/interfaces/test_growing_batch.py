"""A study whose trainings grow their batch: everything counted in samples stays right."""

import dataclasses

import pytest

import hpo
from storage.store import Store
from trainers.begin import begin_training
from trainers.workloads.noisy_quadratic.optimum import quadratic_optimum
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

pytestmark = [pytest.mark.fit, pytest.mark.processes]

STUDY = """
name: growing
workload: noisy_quadratic
data: {modes: 200, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32]
search:
  learning_rate: {log_uniform: [0.01, 1.0], role: scaled}
  momentum: 0.9
  batch_control: piecewise
  batch_milestones: [2]
  batch_factors: [4]
budget: {trials: 8, epochs_per_trial: 80}
"""


@pytest.mark.slow
def test_the_size_of_the_training_set_does_not_depend_on_the_batch_size_over_time(tmp_path):
    storage = f"sqlite:///{tmp_path}/hpo.db"
    result = hpo.run_study(hpo.parse_study(STUDY), storage, folder=tmp_path / "work")
    assert result.train_samples == 512
    with Store.open(storage) as store:
        points = store.points(result.trials[0].id)
    assert [point.global_batch_size for point in points][-1] == 4 * result.trials[
        0
    ].global_batch_size
    assert hpo.forecast(result, global_batch_size=64).train_samples == 512


def test_forecast_plan_and_script_tell_what_a_batch_by_the_noise_scale_saves(tmp_path):
    """And the training that the plan asks for saves about as much."""
    pieces = "batch_control: piecewise\n  batch_milestones: [2]\n  batch_factors: [4]"
    by_noise = "batch_control: noise_scale\n  batch_limit_factor: 8\n  noise_scale_ratio: 0.05"
    study = STUDY.replace(pieces, by_noise).replace("growing", "ramped")
    assert "noise_scale_ratio" in study
    storage = f"sqlite:///{tmp_path}/hpo.db"
    result = hpo.run_study(hpo.parse_study(study), storage, folder=tmp_path / "work")
    made = hpo.forecast(result, global_batch_size=64)
    assert made.ramp is not None and str(made.ramp) in made.reason
    assert made.to_dict()["ramp"]["largest_batch"] == made.ramp.largest_batch == 512
    assert 0 < made.ramp.updates.low < made.ramp.updates.high < 1
    plan = hpo.make_plan(made, machine="local", workers=2)
    assert "expected to save" in plan.reason
    hpo.store_plan(made, plan, tmp_path / "plan")
    assert "expected to save" in (tmp_path / "plan" / "launch.sh").read_text(encoding="utf-8")
    training = begin_training(dataclasses.replace(plan.job, epochs=400.0))
    sizes = set()
    while not training.finished:
        sizes.add(training.advance().global_batch_size)
    assert max(sizes) == 512 and training.outcome.state == "reached"
    problem = QuadraticProblem.from_data(plan.job.data)
    constant = (
        quadratic_optimum(problem, plan.job.target.threshold, 64, momentum=0.9).epochs * 512 / 64
    )
    saved = 1 - training.outcome.steps / constant
    assert made.ramp.updates.low <= saved <= made.ramp.updates.high, (saved, made.ramp)
