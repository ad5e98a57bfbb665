"""The contract on PostgreSQL, and what can go wrong with a server."""

from __future__ import annotations

import threading

import pytest
from psycopg.pq import TransactionStatus
from store_contract import StoreContract
from store_samples import make_points, make_study, make_trials, submit

from storage.errors import StoreUnavailable
from storage.records import StudyState, TrialResult, TrialState
from storage.store import Store


@pytest.mark.slow
class TestPostgresqlStore(StoreContract):
    @pytest.fixture
    def url(self, postgres_url):
        return postgres_url


@pytest.fixture
def store(postgres_url):
    with Store.open(postgres_url) as store:
        yield store


def test_urls_of_postgresql_mean_psycopg_3(postgres_url):
    for prefix in ("postgresql://", "postgres://", "postgresql+psycopg://"):
        with Store.open(postgres_url.replace("postgresql://", prefix)) as store:
            assert store._database.engine.dialect.driver == "psycopg"
            assert store.studies() == []


def test_a_server_that_restarts_is_found_again(postgres, store):
    """Stopped as in a crash, with connections in the pool and a transaction under way."""
    study = make_study(store)
    (trial,) = make_trials(store, study, 16)
    store.record({trial.id: make_points(5)})
    with pytest.raises(StoreUnavailable) as lost, store._write() as connection:
        connection.exec_driver_sql("UPDATE studies SET message = 'half done'")
        postgres.stop()
        connection.exec_driver_sql("SELECT 1")
    assert "the next call reconnects" in str(lost.value)
    try:
        for call in (store.studies, lambda: store.record({trial.id: make_points(6)})):
            with pytest.raises(StoreUnavailable, match="start the server"):
                call()
        with pytest.raises(StoreUnavailable, match="start the server"):
            Store.open(store.url)
    finally:
        postgres.start()
    assert store.study("digits").message == ""
    assert store.points(trial.id) == make_points(5)
    store.finish_trial(trial.id, TrialResult(state=TrialState.CENSORED), make_points(7))
    assert len(store.points(trial.id)) == 7


def test_a_connection_that_the_server_ended_at_rest_is_replaced(store, postgres_url):
    make_study(store)
    with store._read() as connection:
        ended = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with Store.open(postgres_url) as other, other._write() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({ended}, 10000)")
    assert store.study("digits").name == "digits"
    with store._read() as connection:
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != ended


@pytest.mark.parametrize(
    ("single", "status"), [(True, TransactionStatus.IDLE), (False, TransactionStatus.INTRANS)]
)
def test_a_single_statement_opens_no_transaction(store, single, status):
    with store._read(single_statement=single) as connection:
        connection.exec_driver_sql("SELECT 1")
        assert connection.connection.dbapi_connection.info.transaction_status == status


def test_a_lease_outlives_a_restart(postgres, store):
    submit(store, "digits")
    lease = store.claim_study("w", lease_seconds=60)
    postgres.stop()
    try:
        with pytest.raises(StoreUnavailable):
            store.renew_lease(lease, lease_seconds=60)
    finally:
        postgres.start()
    assert store.renew_lease(lease, lease_seconds=60).generation == lease.generation
    store.release_study(lease, StudyState.FINISHED)


def test_a_claim_does_not_wait_for_a_study_that_another_is_taking(store):
    for name in ("first", "second"):
        submit(store, name)
    with store._write() as connection:
        connection.exec_driver_sql("SELECT id FROM studies WHERE name = 'first' FOR UPDATE")
        assert store.claim_study("w", lease_seconds=60).study.name == "second"
        assert store.claim_study("w", lease_seconds=60) is None
    assert store.claim_study("w", lease_seconds=60).study.name == "first"


def test_a_takeover_waits_for_the_write_under_way(store, postgres_url):
    """A write that has checked its lease is done before another worker holds the study."""
    study = submit(store, "digits").study
    lease = store.claim_study("old", lease_seconds=0.01)
    with store.leased(lease)._write() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(0.02)")
        assert store.claim_study("new", lease_seconds=60) is None
    assert store.claim_study("new", lease_seconds=60).study.id == study.id


def test_a_write_waits_no_longer_than_it_was_told(postgres_url, store):
    study = make_study(store)
    with Store.open(postgres_url, timeout_seconds=0.1) as hasty, store._write() as connection:
        connection.exec_driver_sql("SELECT id FROM studies FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="lock timeout; another process is writing"):
            hasty.set_study_state(study.id, StudyState.FAILED)


def test_events_become_visible_in_their_order(store):
    """A number is drawn before the commit: a reader that goes on after the larger one would miss the smaller."""
    study = make_study(store)
    seen: list[int] = []
    writers = [
        threading.Thread(target=lambda: [store.add_event(study.id, "point", "") for _ in range(25)])
        for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    while len(seen) < 100:
        seen += [event.id for event in store.events(after=seen[-1] if seen else 0)]
    for writer in writers:
        writer.join()
    assert seen == sorted(seen)
    assert [event.id for event in store.events()] == seen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda url: url.replace("/database_", "/no_database_"),
            "does not exist; create the database on the server",
        ),
        (
            lambda url: url.split("?")[0] + "?host=/nonexistent",
            "start the server, or correct host and port",
        ),
        (lambda url: "postgresql://postgres@127.0.0.1:1/x", "refused; start the server"),
    ],
)
def test_a_server_or_database_that_is_not_there(postgres_url, change, message):
    with pytest.raises(StoreUnavailable, match=message):
        Store.open(change(postgres_url))


def test_a_database_without_tables_is_not_filled_by_a_reader(empty_postgres_url):
    with pytest.raises(
        StoreUnavailable, match="nothing is stored in it yet; check the path or URL"
    ):
        Store.open(empty_postgres_url, create=False)
    Store.open(empty_postgres_url).close()
    Store.open(empty_postgres_url, create=False).close()
