"""A worker that validates a plan stops it when the study is cancelled."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from benchmarks.fleet import Paced, wait_for
from hpo.service.worker import StudyWorker, WorkerOptions
from storage.records import StudyState
from storage.store import Store

pytestmark = pytest.mark.processes

MORE = "full_scale: {global_batch_size: 64, machine: local, workers: 1, validate: true}\n"


def launched(folder):
    """Processes whose command names the folder of the plan."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder / ".hpo" / "plans") in command and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


@pytest.mark.slow
def test_cancelling_ends_a_validation_run_and_its_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/hpo.db"
    with Store.open(url) as store:
        study = Paced("validated", trials=4, epochs=40, seconds=0, more=MORE).submit(
            store, tmp_path
        )
        slow = store.study("validated").spec.replace("seconds: 0,", "seconds: 0.01,")
        store.update_spec(study.id, slow)
        worker = StudyWorker(WorkerOptions(storage=url, folder=tmp_path / ".hpo", once=True))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_for(lambda: launched(tmp_path) or not thread.is_alive(), 120, "the launch")
            assert thread.is_alive(), store.study("validated").message
            time.sleep(0.5)
            store.request_cancel(study.id)
            thread.join(60)
            assert not thread.is_alive()
            wait_for(lambda: not launched(tmp_path), 30, "its processes to end")
        finally:
            worker.stop()
            for process in launched(tmp_path):
                os.kill(process, signal.SIGKILL)
        ended = store.study("validated")
        assert ended.state is StudyState.CANCELLED, ended.message
        assert store.plans(study.id) and all(
            store.outcomes(plan.id) == [] for plan in store.plans(study.id)
        )
