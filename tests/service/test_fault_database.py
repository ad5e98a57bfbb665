"""The database becomes unavailable while a study runs: results are kept in memory, written once, and reported."""

import errno
import os
import random

import pytest

from benchmarks import faults
from benchmarks.fleet import Paced
from hpo.errors import LaunchError
from hpo.runs.lease import HeldLease
from hpo.runs.run import RunOptions, run_held_study
from hpo.study.spec import parse_study
from hpo.tuning.retry import StorageRetry
from hpo.tuning.tuner import RayOptions
from storage.errors import StoreUnavailable
from storage.records import StudyState
from storage.store import Store

pytestmark = pytest.mark.processes


class Clock:
    """Time that passes by sleeping."""

    def __init__(self):
        self.now, self.told = 0.0, []

    def retry(self, seconds, stopped=lambda: False):
        return StorageRetry(
            seconds, self.told.append, stopped, sleep=self.sleep, clock=lambda: self.now
        )

    def sleep(self, seconds):
        self.now += seconds


def fails(times, result="done", cause="connection refused"):
    left = [times]

    def call():
        if left[0] > 0:
            left[0] -= 1
            raise StoreUnavailable("x.db", cause, "start the server")
        return result

    return call


def test_a_call_is_repeated_until_the_database_is_back():
    clock = Clock()
    assert clock.retry(60)(fails(5)) == "done"
    assert clock.now == pytest.approx(0.2 + 0.4 + 0.8 + 1.6 + 3.2)
    assert "connection refused" in clock.told[0] and "up to 60 s" in clock.told[0]
    assert clock.told[1:] == ["the database is available again after 6.2 s; nothing was lost"]


def test_retries_end_with_the_error_itself():
    clock = Clock()
    with pytest.raises(StoreUnavailable, match="connection refused"):
        clock.retry(20)(fails(1000))
    assert 20 <= clock.now < 25 and "gave up after 20 s" in clock.told[-1]


@pytest.mark.parametrize(
    "cause", ["attempt to write a readonly database", "file is not a database"]
)
def test_nobody_waits_for_what_does_not_come_back(cause):
    clock = Clock()
    with pytest.raises(StoreUnavailable, match=cause):
        clock.retry(60)(fails(1, cause=cause))
    assert clock.now == 0


def test_a_worker_that_is_stopped_does_not_wait():
    clock = Clock()
    with pytest.raises(StoreUnavailable):
        clock.retry(60, stopped=lambda: clock.now > 1)(fails(1000))
    assert clock.now < 3


def test_a_write_that_was_committed_is_not_repeated():
    written = []

    def write():
        written.append(1)
        raise StoreUnavailable("x.db", "connection lost", "start the server")

    assert Clock().retry(60)(write, lambda: "stored" if written else None) == "stored"
    assert len(written) == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_plan_that_finds_no_room_on_the_disk_is_written_when_there_is_some(error):
    clock, tries = Clock(), []

    def write():
        tries.append(1)
        if len(tries) < 4:
            try:
                raise OSError(error, os.strerror(error))
            except OSError as cause:
                raise LaunchError(f"cannot write the plan to x: {cause}") from cause
        return "written"

    assert clock.retry(60)(write) == "written"
    assert len(tries) == 4 and clock.told[1] == "there is room after 1.4 s; nothing was lost"


def test_an_error_that_waiting_does_not_mend_is_raised_at_once():
    clock = Clock()
    for error in (
        PermissionError(errno.EACCES, "no"),
        LaunchError("the run ended with 1"),
        ValueError("x"),
    ):

        def fail(error=error):
            raise error

        with pytest.raises(type(error)):
            clock.retry(60)(fail)
    assert clock.now == 0 and clock.told == []


class Unreliable:
    """A store whose connection breaks in one call of three, half of the times after the commit."""

    BREAKING = {
        "add_trials",
        "start_trials",
        "record",
        "finish_trial",
        "requeue_running",
        "trials",
        "trial",
        "points",
        "update_spec",
        "study",
    }

    def __init__(self, store, seed):
        self._store, self._rng, self.broken = store, random.Random(seed), 0

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name not in self.BREAKING:
            return method

        def call(*arguments, **named):
            breaks, commits = self._rng.random() < 1 / 3, self._rng.random() < 0.5
            if breaks and not commits:
                self.broken += 1
                raise StoreUnavailable("x.db", "connection lost", "start the server")
            result = method(*arguments, **named)
            if breaks:
                self.broken += 1
                raise StoreUnavailable("x.db", "connection lost", "start the server")
            return result

        return call


@pytest.mark.parametrize("seed", range(3))
def test_a_sweep_over_an_unreliable_connection_stores_what_a_reliable_one_does(
    tmp_path, monkeypatch, seed
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpo.tuning.retry.FIRST_PAUSE", 0.0)
    stored = {}
    for kind in ("reliable", "unreliable"):
        with Store.open(f"sqlite:///{tmp_path}/{kind}.db") as store:
            study = Paced("a study", trials=6, epochs=8, seconds=0).submit(store, tmp_path)
            lease = store.claim_study("w", lease_seconds=60)
            with HeldLease(store, lease, on_warning=lambda text: None, lease_seconds=60) as held:
                if kind == "unreliable":
                    held.store = Unreliable(held.store, seed)
                run_held_study(
                    parse_study(study.spec),
                    held,
                    store.url,
                    RunOptions(folder=tmp_path / kind, storage_retry_seconds=60, ray=RayOptions()),
                )
                assert kind == "reliable" or held.store.broken >= 3
            assert store.study("a study").state is StudyState.FINISHED
            stored[kind] = [
                (
                    trial.number,
                    trial.state,
                    trial.global_batch_size,
                    trial.settings,
                    trial.epochs_to_target,
                    trial.epochs,
                    store.points(trial.id),
                )
                for trial in store.trials(study.id)
            ]
    assert stored["unreliable"] == stored["reliable"]


@pytest.mark.slow
def test_postgresql_is_restarted_in_mid_sweep(postgres, postgres_url, tmp_path):
    report = faults.restarted_postgres(
        postgres, postgres_url, tmp_path, seed=1, restarts=1, away=0.5, trials=10
    )
    assert report.faults == []


@pytest.mark.slow
def test_the_disk_is_full_for_a_while(tmp_path):
    report = faults.full_disk(tmp_path, seed=1, trials=6)
    assert report.faults == [] and "results are kept in memory" in report.told
