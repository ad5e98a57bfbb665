"""Sweeps: what ends a trial, what stops a sweep, and what happens on a rerun; on Ray where it can differ."""

import functools
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpo
from hpo.errors import SpecError, TuningError
from hpo.tuning import trainings, tuner
from storage.records import StudyState, TrialState
from storage.store import Store

pytestmark = [pytest.mark.fit, pytest.mark.processes]

HERE = Path(__file__).parent
STUDY = """\
name: a study
workload: slow_workload:{workload}
data: {{log: {folder}/batches, seconds: 0.0{data}}}
target: {{metric: accuracy, at_least: 0.95}}
ladder: [4, 8]
search:
  learning_rate: {{log_uniform: [0.1, 2.0], role: scaled}}
  normalization_batch_size: 1
budget: {{trials: {trials}, epochs_per_trial: 20, evaluations_per_epoch: 1}}
seeds: 2
"""


@pytest.fixture
def run(tmp_path):
    """Run a study of the given number of trials in a folder of its own, its trials in this process."""
    (tmp_path / "slow_workload.py").write_text((HERE / "slow_workload.py").read_text())

    def run_study(trials=4, data="", progress=None, change=("", ""), workload="Here", more=""):
        text = STUDY.format(folder=tmp_path, trials=trials, data=data, workload=workload) + more
        (tmp_path / "study.yaml").write_text(text.replace(*change))
        return hpo.run_study(
            hpo.load_study(tmp_path / "study.yaml"),
            f"sqlite:///{tmp_path}/hpo.db",
            folder=tmp_path / ".hpo",
            progress=progress,
        )

    return run_study


@pytest.fixture
def run_on_ray(one_ray, run):
    """The same on Ray, a trial after the other: one actor starts in half the time of two."""
    return functools.partial(run, workload="Slow", more="resources: {cpus_per_worker: 2}\n")


@pytest.mark.slow
def test_a_finished_study_is_not_trained_again_and_a_larger_budget_adds_to_it(run):
    first = run(trials=4)
    assert first.complete and len(first.trials) == 4
    check_curves(first)
    assert {trial.state for trial in first.trials} <= {
        TrialState.REACHED,
        TrialState.CENSORED,
        TrialState.PRUNED,
    }
    assert any(trial.state is TrialState.REACHED for trial in first.trials)
    again = run(trials=4)
    assert again.trials == first.trials
    more = run(trials=8)
    assert more.trials[:4] == first.trials and len(more.trials) == 8
    check_curves(more)


@pytest.mark.slow
def test_the_same_on_ray(run_on_ray):
    test_a_finished_study_is_not_trained_again_and_a_larger_budget_adds_to_it(run_on_ray)


def check_curves(result):
    """Every trial has its curve and its end."""
    with Store.open(result.storage) as store:
        for trial in result.trials:
            points = store.points(trial.id)
            assert points[-1].epochs == pytest.approx(trial.epochs)
            assert [point.epochs for point in points] == pytest.approx(
                [n + 1.0 for n in range(len(points))]
            )
            assert trial.resolution_epochs == pytest.approx(1.0)
            if trial.state is TrialState.REACHED:
                assert trial.epochs_to_target == trial.epochs and points[-1].metric >= 0.95
                assert all(point.metric < 0.95 for point in points[:-1])


def test_a_ladder_may_change_and_the_trials_of_a_rung_that_went_stay(run):
    first = run(trials=4)
    second = run(trials=6, change=("[4, 8]", "[4, 16]"))
    assert second.complete and second.trials[:4] == first.trials
    assert sorted(trial.global_batch_size for trial in second.trials) == [4, 4, 4, 8, 8, 16, 16, 16]


def test_a_study_of_the_same_name_that_would_not_compare_is_refused(run):
    run(trials=4)
    with pytest.raises(SpecError, match=r"line 4.*another target.*rename this study"):
        run(trials=4, change=("0.95", "0.9"))


@pytest.mark.slow
def test_a_trial_whose_process_dies_is_failed_with_its_reason(run_on_ray, monkeypatch):
    monkeypatch.setattr(tuner, "TRIAL_RESTARTS", 0)
    monkeypatch.setattr(trainings, "GIVE_UP_AFTER", 2)  # each of them is a process that starts
    with pytest.raises(TuningError, match="first 2 trials all failed"):
        run_on_ray(trials=8, data=", dies_after: 0")


@pytest.mark.slow
def test_a_trial_that_is_given_to_a_process_that_is_dead_begins_anew(run_on_ray, tmp_path):
    """Tune gives it up at once, restarts or not: a machine that is gone would take trials with it."""
    result = run_on_ray(trials=4, data=f", dies_when_reused: {tmp_path}/died")
    assert (tmp_path / "died").exists()
    assert result.complete
    assert [trial.state for trial in result.trials] == [TrialState.REACHED] * 4


@pytest.mark.slow
def test_an_error_of_the_workload_is_the_reason_of_the_trial(run_on_ray):
    with pytest.raises(TuningError, match=r"trial 0: TypeError"):
        run_on_ray(trials=8, data=", dies_after: one")


def test_an_interrupted_sweep_goes_on_where_it_was(run_on_ray):
    class Interrupt(hpo.Progress):
        def sweep(self, spec, trials, running):
            if sum(trial.state.finished for trial in trials) >= 2:
                raise KeyboardInterrupt

    first = run_on_ray(trials=6, progress=Interrupt())
    assert first.study.state is StudyState.INTERRUPTED and not first.complete
    finished = [trial for trial in first.trials if trial.state.finished]
    assert 2 <= len(finished) < 6
    assert all(
        trial.state is TrialState.QUEUED for trial in first.trials if not trial.state.finished
    )
    second = run_on_ray(trials=6)
    assert second.complete and len(second.trials) == 6
    assert [
        trial for trial in second.trials if trial.number in {t.number for t in finished}
    ] == finished


def test_convergence_is_in_the_database_while_the_trial_runs(run_on_ray, tmp_path):
    seen = []

    class Watch(hpo.Progress):
        def sweep(self, spec, trials, running):
            with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
                seen.extend(
                    (trial.id, len(store.points(trial.id)))
                    for trial in trials
                    if trial.state is TrialState.RUNNING
                )

    started = time.monotonic()
    run_on_ray(trials=2, data="", progress=Watch(), change=("seconds: 0.0", "seconds: 0.005"))
    assert time.monotonic() - started > 1.0
    assert max(count for _, count in seen) > 0


def test_a_folder_that_cannot_be_written_is_an_error(run, tmp_path):
    (tmp_path / ".hpo").write_text("not a folder")
    with pytest.raises(TuningError, match=r"cannot write to the folder .*\.hpo: .*--folder"):
        run(trials=4)


def test_two_processes_cannot_run_one_study(run, tmp_path):
    run(trials=4)
    lock = next((tmp_path / ".hpo").glob("study-*.lock"))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, time; lock = open({str(lock)!r}, 'w'); "
            "fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TuningError, match="another process is running study 'a study'"):
            run(trials=4)
    finally:
        holder.kill()
        holder.communicate()
    assert run(trials=4).complete
