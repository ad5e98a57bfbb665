"""Leases that are lost while a study runs: the run that lost its lease writes nothing more, and no result is lost."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.fleet import Paced, Witness, all_ended, wait_for
from hpo.runs import lease as leases
from hpo.runs.lease import HeldLease
from hpo.runs.run import RunOptions, run_held_study
from hpo.service.worker import StudyWorker, WorkerOptions
from hpo.study.spec import parse_study
from hpo.tuning.tuner import RayOptions
from storage.database import CLOCK
from storage.errors import LeaseLost
from storage.records import StudyState
from storage.store import Store

pytestmark = pytest.mark.medium


def worker(url, folder, name, **more):
    return StudyWorker(
        WorkerOptions(
            storage=url,
            folder=folder / ".hpo",
            name=name,
            poll_seconds=0.05,
            **{"lease_seconds": 1, **more},
        )
    )


def in_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_worker_that_no_longer_renews_is_fenced_off_and_harms_nothing(
    store, url, tmp_path, monkeypatch
):
    study = Paced("fenced", trials=8, epochs=10, seconds=0.1).submit(store, tmp_path)
    renewals = leases.HeldLease.tick
    monkeypatch.setattr(
        leases.HeldLease,
        "tick",
        lambda self: None if self.lease.worker == "asleep" else renewals(self),
    )
    asleep = in_thread(worker(url, tmp_path, "asleep", once=True).run)
    wait_for(lambda: store.trials(study.id) != [], 60, "the first worker's trials")
    awake = in_thread(worker(url, tmp_path, "awake", once=True).run)
    witness = Witness(store)
    wait_for(lambda: witness.look() >= 0 and all_ended(store), 60, "the study")
    for thread in (asleep, awake):
        thread.join(60)
        assert not thread.is_alive()
    events = [
        (event.kind, event.data["worker"])
        for event in store.events(study_id=study.id)
        if event.kind != "trials"
    ]
    assert sorted(events) == [
        ("claimed", "asleep"),
        ("finished", "awake"),
        ("lease_lost", "asleep"),
        ("taken_over", "awake"),
    ]
    lost = next(event for event in store.events() if event.kind == "lease_lost")
    assert "'awake' has taken it over" in lost.message
    # a trial that both trained at once began in one of them after its end in the other, and has one end all the same
    assert [fault for fault in witness.faults(tmp_path) if "began again" not in fault] == []


def test_an_evaluation_longer_than_the_lease_does_not_lose_it(store, url, tmp_path):
    study = Paced("long", trials=2, epochs=1, seconds=2.5).submit(store, tmp_path)
    first = in_thread(worker(url, tmp_path, "first", once=True).run)
    wait_for(lambda: store.study("long").state is StudyState.RUNNING, 30, "the first worker")
    other = worker(url, tmp_path, "other")
    thief = in_thread(other.run)
    wait_for(lambda: all_ended(store), 60, "the study")
    other.stop()
    for thread in (first, thief):
        thread.join(30)
    assert store.study("long").attempts == 1
    assert {event.data["worker"] for event in store.events(study_id=study.id)} == {"first"}


def test_a_clock_that_jumps_forward_costs_a_take_over_and_nothing_else(store, url, tmp_path):
    study = Paced("jump", trials=6, epochs=8, seconds=0.02).submit(store, tmp_path)
    first = in_thread(worker(url, tmp_path, "first", once=True, lease_seconds=60).run)
    wait_for(
        lambda: any(trial.state.finished for trial in store.trials(study.id)),
        60,
        "a finished trial",
    )
    witness = Witness(store)
    seen = witness.look()
    with Store.open(url) as ahead:
        ahead._database._writer = ahead._database._writer.execution_options(**{CLOCK: _in_an_hour})
        ahead._database._reader = ahead._database._reader.execution_options(**{CLOCK: _in_an_hour})
        lease = ahead.claim_study("ahead", lease_seconds=60)
        assert lease is not None and lease.taken_over
        first.join(30)
        assert not first.is_alive() and seen > 0
        ahead.release_study(lease, StudyState.QUEUED)
    assert worker(url, tmp_path, "second", drain=True).run() == 1
    assert witness.faults(tmp_path) == []
    assert [
        event.kind
        for event in store.events(study_id=study.id)
        if event.kind in ("lease_lost", "finished")
    ] == ["lease_lost", "finished"]


def _in_an_hour():
    return datetime.now(UTC) + timedelta(hours=1)


def test_a_run_that_lost_its_lease_writes_nothing_even_before_it_knows(store, url, tmp_path):
    study = Paced("stale", trials=4, epochs=4, seconds=0.01).submit(store, tmp_path)
    stale = store.claim_study("stale", lease_seconds=0.01)
    time.sleep(0.05)
    fresh = store.claim_study("fresh", lease_seconds=60)
    assert fresh.taken_over
    before = (store.trials(study.id), store.study("stale"))
    told = []
    with (
        HeldLease(store, stale, on_warning=told.append, lease_seconds=60) as held,
        pytest.raises(LeaseLost, match="'fresh'"),
    ):
        run_held_study(
            parse_study(study.spec),
            held,
            url,
            RunOptions(folder=tmp_path / ".hpo", storage_retry_seconds=0, ray=RayOptions()),
        )
    assert (store.trials(study.id), store.study("stale")) == before
