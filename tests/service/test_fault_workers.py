"""Workers and machines that die: no finished trial is lost or run twice, and every study ends."""

import os
import secrets
import signal
import subprocess
import sys

import pytest

from benchmarks import faults
from benchmarks.fleet import Paced, Witness, begun, fleet, runs, wait_for
from storage.records import StudyState
from storage.store import Store

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_workers_killed_on_sqlite(tmp_path):
    report = faults.killed_workers(
        f"sqlite:///{tmp_path}/hpo.db", tmp_path, seed=3, kills=2, studies=2, trials=6, window=0.5
    )
    assert report.faults == [] and "2 workers killed" in report.told


@pytest.mark.slow
def test_workers_killed_on_postgresql(postgres_url, tmp_path):
    report = faults.killed_workers(
        postgres_url, tmp_path, seed=4, kills=2, studies=1, trials=10, window=0.5
    )
    assert report.faults == [] and "2 workers killed" in report.told


def test_sigterm_puts_the_study_back_into_the_queue_and_says_so(tmp_path):
    url = f"sqlite:///{tmp_path}/hpo.db"
    with Store.open(url) as store, fleet(url, tmp_path) as workers:
        Paced("study", trials=20, epochs=20, seconds=0.02).submit(store, tmp_path)
        worker, witness = workers.start("--name", "one"), Witness(store)
        wait_for(lambda: witness.look() >= 1, 60, "a finished trial")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        study = store.study("study")
        assert study.state is StudyState.QUEUED and "one was stopped" in study.message
        assert "study: queued: one was stopped; another worker will continue" in workers.said()
        assert "Traceback" not in workers.said()


@pytest.mark.slow
def test_sigterm_stops_trials_on_ray_and_the_next_worker_goes_on(tmp_path):
    url = f"sqlite:///{tmp_path}/hpo.db"
    with Store.open(url) as store, fleet(url, tmp_path, "--cores", "1") as workers:
        study = Paced("study", trials=8, epochs=10, seconds=0.05, kind="OnRay").submit(
            store, tmp_path
        )
        worker, witness = workers.start(), Witness(store)
        wait_for(lambda: runs(store, worker) and witness.look() >= 1, 120, "a finished trial")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert store.study("study").state is StudyState.QUEUED
        # a trial has its record from its start: those that were to come have none
        assert sum(trial.state.finished for trial in store.trials(study.id)) < 8
        assert workers.start("--drain").wait(120) == 0
        assert witness.faults(tmp_path) == [] and len(begun("study", tmp_path)) <= 9
        assert "Traceback" not in workers.said()


@pytest.mark.slow
def test_a_ray_cluster_of_three_machines_loses_one(tmp_path):
    pytest.importorskip("ray")
    # in a process of its own: whether Ray asks for a token is settled when it begins
    code = (
        "import sys; from pathlib import Path; from benchmarks import faults; "
        "report = faults.lost_machine(Path(sys.argv[1]), seed=1, trials=6); "
        "print(report.faults, report.told)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",  # how soon a machine that is gone counts as gone
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("[] one of three machines killed"), done.stdout


@pytest.mark.slow
def test_many_workers_drain_a_queue_and_run_every_study_once(postgres_url, tmp_path):
    report = faults.drained_queue(postgres_url, tmp_path, workers=3, studies=20)
    assert report.faults == []
