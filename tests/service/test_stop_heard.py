"""A request to stop takes effect within five seconds, whatever a worker is doing."""

import os
import threading
import time

import pytest

from benchmarks.fleet import Fleet, Paced, begun, wait_for
from hpo.study.spec import parse_study
from hpo.tuning.interrupt import Interrupter, WorkInterrupted
from storage.records import NewStudy, StudyState

SECONDS = 5.0
GENERATED = """\
name: stopped
workload: segmentation
data: {samples: 3000, evaluation_samples: 2, height: 96, width: 144}
target: {metric: iou, at_least: 0.9}
ladder: [8]
search: {learning_rate: {log_uniform: [0.01, 1], role: scaled}, normalization_batch_size: 1}
budget: {trials: 2, epochs_per_trial: 2}
"""


def simulation(store, folder):
    return Paced("stopped", trials=4, epochs=3, seconds=100).submit(store, folder), "simulation"


def long_epoch(store, folder):
    study = Paced("stopped", trials=4, epochs=3, seconds=100, kind="OnRay").submit(store, folder)
    return study, "epoch"


def generation(store, folder):
    spec = parse_study(GENERATED)
    made = store.submit_study(
        NewStudy(
            name=spec.name,
            workload=spec.workload,
            metric=spec.target.metric,
            threshold=spec.target.threshold,
            higher_is_better=True,
            spec=GENERATED,
        )
    )
    return made.study, "generation"


@pytest.mark.slow
@pytest.mark.parametrize("how", [simulation, generation, long_epoch], ids=lambda how: how.__name__)
@pytest.mark.parametrize("way", ["cancel", "TERM"])
def test_a_stop_is_heard(tmp_path, store, url, monkeypatch, how, way):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    study, phase = how(store, tmp_path)
    cache = tmp_path / "cache" / "largebatch" / "climate"

    def at_it():
        if phase == "generation":
            return any(cache.glob(".*/train/*.h5"))
        return begun("stopped", tmp_path)

    # the usual time between two renewals of a lease
    fleet = Fleet(url, tmp_path, ["--lease-seconds", "30", "--cores", "1"])
    try:
        worker = fleet.start()
        wait_for(at_it, 120, phase)
        asked = time.monotonic()
        if way == "cancel":
            store.request_cancel(study.id)
            ended = StudyState.CANCELLED
        else:
            worker.terminate()
            ended = StudyState.QUEUED
        wait_for(lambda: store.study("stopped").state is ended, 30, "the stop")
        assert time.monotonic() - asked < SECONDS
    finally:
        for process in fleet.processes:
            process.kill()
            process.wait()
    assert not list(cache.glob(".*/train"))


@pytest.mark.parametrize("main", [True, False], ids=["main thread", "another thread"])
def test_work_is_interrupted_inside_its_region_alone(main):
    stop, seen = threading.Event(), []

    def work():
        with Interrupter(stop.is_set, grace_seconds=0.1) as interrupter:
            with interrupter.region():
                seen.append("inside")
            try:
                with interrupter.region():
                    stop.set()
                    until = time.monotonic() + 20
                    while time.monotonic() < until:
                        os.getpid()
            except WorkInterrupted:
                seen.append("interrupted")
            time.sleep(1.0)  # outside: nothing comes
            seen.append("outside")

    if main:
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
    assert seen == ["inside", "interrupted", "outside"]
