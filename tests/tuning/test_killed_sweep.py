"""A killed sweep loses no finished trial, repeats none, and continues from the checkpoints."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.records import TrialState
from storage.store import Store

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent
STUDY = """\
name: slow
workload: slow_workload:Slow
data: {{log: {log}}}
target: {{metric: accuracy, at_least: 1.0}}
ladder: [4, 8]
search:
  learning_rate: {{log_uniform: [0.0001, 0.001], role: scaled}}
  normalization_batch_size: 1
budget: {{trials: 6, epochs_per_trial: 24, evaluations_per_epoch: 1}}
seeds: 2
resources: {{cpus_per_worker: 2}}
"""
SWEEP = """\
import sys
from hpo.tuning import trainings
trainings.CHECKPOINT_SECONDS = 0.05
import hpo
hpo.run_study(hpo.load_study(sys.argv[1]), f"sqlite:///{sys.argv[2]}/hpo.db", folder=f"{sys.argv[2]}/.hpo")
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SWEEP, str(folder / "study.yaml"), str(folder)],
            cwd=folder,
            stderr=log,
            start_new_session=True,
        )


def trials_of(folder: Path) -> list:
    if not (folder / "hpo.db").exists():
        return []
    with Store.open(f"sqlite:///{folder}/hpo.db") as store:
        return store.trials(1) if store.studies() else []


def wait_for(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.3)  # to look opens the database anew


@pytest.mark.slow
def test_kill_9_in_mid_sweep_loses_and_repeats_nothing(tmp_path):
    (tmp_path / "slow_workload.py").write_text((HERE / "slow_workload.py").read_text())
    (tmp_path / "study.yaml").write_text(STUDY.format(log=tmp_path / "batches"))
    checkpoints = tmp_path / ".hpo" / "checkpoints" / "1"

    process = start(tmp_path)
    try:
        wait_for(lambda: sum(trial.state.finished for trial in trials_of(tmp_path)) >= 2)
        running = {trial.number for trial in trials_of(tmp_path) if not trial.state.finished}
        wait_for(
            lambda: (
                any((checkpoints / f"{number}.pt").exists() for number in running)
                or process.poll() is not None
            )
        )
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finished = [trial for trial in trials_of(tmp_path) if trial.state.finished]
    in_flight = [trial for trial in trials_of(tmp_path) if not trial.state.finished]
    saved = [trial for trial in in_flight if (checkpoints / f"{trial.number}.pt").exists()]
    assert 2 <= len(finished) < 6 and saved
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        curves = {trial.id: store.points(trial.id) for trial in finished}
    time.sleep(1)  # the actors of the dead sweep notice and end
    before = len((tmp_path / "batches").read_text().splitlines())

    process = start(tmp_path)
    try:
        assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    trials = trials_of(tmp_path)
    assert len(trials) == 6 and all(trial.state.finished for trial in trials)
    assert not [trial for trial in trials if trial.state is TrialState.FAILED]
    assert [trial for trial in trials if trial.id in curves] == finished
    trained = [
        (trial.global_batch_size, trial.seed, trial.settings["learning_rate"]) for trial in trials
    ]
    assert len(set(trained)) == 6
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        assert {trial_id: store.points(trial_id) for trial_id in curves} == curves
        for trial in saved:
            steps = [point.step for point in store.points(trial.id)]
            assert steps == sorted(set(steps)) and steps[0] == 64 // trial.global_batch_size
    first_epochs = {}
    for line in (tmp_path / "batches").read_text().splitlines()[before:]:
        process_id, epoch = line.split()
        first_epochs.setdefault(process_id, int(epoch))
    assert max(first_epochs.values()) > 0, (
        "a trial in flight began anew although it had a checkpoint"
    )
