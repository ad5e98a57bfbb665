"""Bounds of figures in both databases, sums beyond them, damage behind the store, and databases of earlier releases."""

import dataclasses
import logging
import sqlite3

import pytest
from migration_contract import write_everything
from queue_contract import HandClock
from sqlalchemy import text
from store_samples import make_points, make_study, make_trials, new_outcome, new_plan, submit

from storage import migrations
from storage.database import Database
from storage.errors import DamagedRow, InvalidRecord
from storage.figures import END_FIGURES, OUTCOME_FIGURES, POINT_FIGURES
from storage.maintenance import maintenance
from storage.records import StudyState, TrialResult, TrialState
from storage.store import Store

RESULT = TrialResult(state=TrialState.REACHED, epochs_to_target=0.5, epochs=0.5, steps=4, seconds=1)


@pytest.fixture
def url(new_url):
    url = new_url()
    with Store.open(url) as store:
        for name in ("digits", "other"):
            study = make_study(store, name)
            for trial in make_trials(store, study, 16, 32):
                store.finish_trial(trial.id, RESULT, make_points(4, 1))
    return url


def below(url, *statements):
    """Statements that go past the store, and past the rules of the tables where the database lets them."""
    database = Database(url, timeout_seconds=5)
    with database.write() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(text(statement))
    database.close()


def complaints(url):
    return {each.name: each.message for each in maintenance.check(url) if each.level != "ok"}


@pytest.mark.parametrize("figure", POINT_FIGURES, ids=lambda figure: figure.name)
def test_a_point_beyond_its_bounds_is_stored_in_no_database(url, figure):
    kind = int if figure.whole else float
    with Store.open(url) as store:
        (trial,) = make_trials(store, make_study(store, "more"), 64)
        (point,) = make_points(1, 1)
        for edge in (figure.least, figure.most):
            store.record({trial.id: [dataclasses.replace(point, **{figure.name: kind(edge)})]})
        for beyond in (figure.least - 1, figure.most * 2 + 1):
            changed = dataclasses.replace(point, **{figure.name: kind(beyond)})
            with pytest.raises(InvalidRecord):
                store.record({trial.id: [changed]})


@pytest.mark.parametrize("figure", END_FIGURES[:-1], ids=lambda figure: figure.name)
def test_an_end_beyond_its_bounds_is_none(figure):
    for beyond in (figure.least - 1, figure.most * 2, 10**30, True, "7"):
        with pytest.raises(InvalidRecord, match=f"{figure.name} must be"):
            TrialResult(**{**dataclasses.asdict(RESULT), figure.name: beyond})


@pytest.mark.parametrize("figure", OUTCOME_FIGURES, ids=lambda figure: figure.name)
def test_an_outcome_beyond_its_bounds_is_none(figure):
    with pytest.raises(InvalidRecord, match=f"{figure.name} must be"):
        new_outcome(1, **{figure.name: figure.most * 2})


def test_the_largest_figures_of_many_trials_have_a_sum(url):
    with Store.open(url) as store:
        study = make_study(store, "large")
        for trial in make_trials(store, study, *[2**31 - 1] * 4):
            last = dataclasses.replace(make_points(1, 1)[0], samples=4 * 10**15, seconds=1e13)
            store.finish_trial(trial.id, dataclasses.replace(RESULT, seconds=1e13), [last])
        (bare,) = make_trials(store, make_study(store, "bare"), 2**31 - 1)
        store.finish_trial(bare.id, dataclasses.replace(RESULT, steps=10**13))
        assert store.usage(study.id).samples == 16 * 10**15
        plan = store.add_plan(new_plan(study))
        store.add_outcome(new_outcome(plan.id, workers=2**31 - 1, seconds=1e13))
        assert store.usage(study.id).accelerator_seconds > 2e22
        assert len(store.page_studies()) == 4


DAMAGES = {
    "a last point": ("DELETE FROM convergence WHERE trial_id = 1 AND step = 4", "trial 0 of study digits"),
    "a metric": ("UPDATE convergence SET metric = 0.7 WHERE trial_id = 2 AND step = 2", "trial 1 of study digits"),
    "a result": ("UPDATE trials SET epochs_to_target = 0.4 WHERE id = 3", "trial 0 of study other"),
    "a setting": ("UPDATE trials SET momentum = 0.8 WHERE id = 3", "trial 0 of study other"),
    "an end": ("UPDATE trials SET state = 'running', epochs_to_target = NULL WHERE id = 4", "trial 1 of study other"),
    "a study file": ("UPDATE studies SET spec = 'name: dig' WHERE id = 1", "the file of study digits"),
    "a checksum": ("UPDATE trials SET checksum = NULL WHERE id = 1", "trial 0 of study digits"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_below_the_store_is_named(url, what):
    assert "checksums" not in complaints(url)
    statement, named = DAMAGES[what]
    below(url, statement)
    assert named in complaints(url)["checksums"]


def test_a_trial_that_is_gone_is_missed(url):
    below(url, "DELETE FROM trials WHERE id = 1")
    assert complaints(url)["numbers"] == "trials are missing: 1 of study digits"


def test_a_backup_carries_the_sums(url, tmp_path, new_url):
    below(url, "UPDATE convergence SET metric = 0.7 WHERE trial_id = 2 AND step = 2")
    maintenance.backup(url, tmp_path / "backup.zip")
    restored = new_url()
    maintenance.restore(restored, tmp_path / "backup.zip")
    assert "1 records" in complaints(restored)["checksums"]


def test_a_bad_row_is_left_out_and_named(tmp_path, caplog):
    url = str(tmp_path / "hpo.db")
    with Store.open(url) as store:
        for name in ("digits", "other"):
            for trial in make_trials(store, make_study(store, name), 16, 32):
                store.finish_trial(trial.id, RESULT, make_points(4, 1))
    below(
        url,
        "UPDATE trials SET state = 'rea~hed' WHERE id = 1",
        "UPDATE trials SET epochs = 'abc' WHERE id = 2",
        "UPDATE convergence SET seconds = 'x' WHERE trial_id = 3 AND step = 2",
        "UPDATE convergence SET samples = 9223372036854775807 WHERE trial_id = 4",
        "UPDATE trials SET samples = 9223372036854775807 WHERE id > 3",
    )
    with Store.open(url) as store, caplog.at_level(logging.ERROR):
        assert store.trials(1) == [] and [trial.id for trial in store.trials(2)] == [3]
        assert "row 1 of trials is damaged" in caplog.text and "row 2 of trials" in caplog.text
        assert [point.step for point in store.points(3)] == [1, 3, 4]
        assert "the point at step 2 of the trial with id 3" in caplog.text
        assert [each.study.name for each in store.page_studies()] == ["other", "digits"]
        assert store.counts(1) and store.totals().studies
        with pytest.raises(DamagedRow, match="hpo db check"):
            store.trial(1, 0)
    below(url, "UPDATE studies SET state = 'broken' WHERE id = 1")
    with Store.open(url) as store:
        assert [each.study.name for each in store.page_studies()] == ["other"]
        assert [each.name for each in store.studies()] == ["other"]


def test_a_page_with_a_bad_row_is_as_long_as_another(tmp_path, caplog):
    url = str(tmp_path / "hpo.db")
    with Store.open(url) as store:
        studies = [make_study(store, f"study {number}") for number in range(5)]
        make_trials(store, studies[0], *[16] * 9)
    below(
        url,
        "UPDATE trials SET seed = 'x' WHERE number IN (1, 4, 8)",
        "UPDATE studies SET priority = 'high' WHERE id IN (2, 5)",
    )
    with Store.open(url) as store, caplog.at_level(logging.ERROR):
        for order, wanted in (("number", [0, 2, 3, 5, 6, 7]), ("epochs", [0, 2, 3, 5, 6, 7])):
            first = store.page_trials(1, order=order, limit=4)
            rest = store.page_trials(1, order=order, limit=4, after=first[-1].number)
            assert (len(first), [each.number for each in first + rest]) == (4, wanted)
        assert "row 2 of trials is damaged" in caplog.text
        newest = store.page_studies(limit=2)
        older = store.page_studies(limit=2, after=newest[-1].study.id)
        assert [each.study.id for each in newest] == [4, 3]
        assert [each.study.id for each in older] == [1]


class TestDamagedQueue:
    @pytest.fixture
    def clock(self):
        return HandClock()

    @pytest.fixture
    def queue(self, tmp_path, clock):
        with Store.open(str(tmp_path / "hpo.db"), clock=clock) as store:
            yield store

    def damage(self, tmp_path, *statements):
        below(str(tmp_path / "hpo.db"), *statements)

    @pytest.mark.parametrize(
        "wrong", ["priority = 'high'", "owner = x'ff'", "spec = CAST(x'ff61' AS TEXT)"]
    )
    def test_a_bad_study_is_passed_over(self, queue, tmp_path, caplog, wrong):
        bad = submit(queue, "bad", owner="ann").study
        submit(queue, "good", owner="bob")
        self.damage(tmp_path, f"UPDATE studies SET {wrong} WHERE id = {bad.id}")
        with caplog.at_level(logging.ERROR):
            assert queue.claim_study("w", lease_seconds=60, per_owner=1).study.name == "good"
            assert queue.claim_study("w", lease_seconds=60, per_owner=1) is None
        assert f"left out: the study with id {bad.id} is damaged" in caplog.text
        for change in (
            lambda: queue.request_cancel(bad.id),
            lambda: queue.take_study(bad.id, "w", lease_seconds=60),
        ):
            with pytest.raises(DamagedRow, match="hpo db check"):
                change()

    @pytest.mark.parametrize(
        "wrong", ["priority = 'high'", "lease_seconds = 'x'", "lease_expires_at = 'x'"]
    )
    def test_a_bad_lease_keeps_nobody_from_the_queue(self, queue, clock, tmp_path, wrong):
        bad, cancelled = (submit(queue, name).study for name in ("bad", "cancelled"))
        for _ in range(2):
            queue.claim_study("dies", lease_seconds=60)
        for study in (bad, cancelled):
            queue.request_cancel(study.id)
        self.damage(tmp_path, f"UPDATE studies SET {wrong} WHERE id = {bad.id}")
        clock.move(61)
        assert [study.id for study in queue.settle_studies()][-1:] == [cancelled.id]
        submit(queue, "good")
        assert queue.claim_study("w", lease_seconds=60).study.name == "good"

    def test_a_lease_on_a_bad_study_is_told(self, queue, tmp_path):
        bad = submit(queue, "bad").study
        lease = queue.claim_study("w", lease_seconds=60)
        self.damage(tmp_path, f"UPDATE studies SET priority = 'high' WHERE id = {bad.id}")
        for change in (
            lambda: queue.renew_lease(lease, lease_seconds=60),
            lambda: queue.release_study(lease, StudyState.QUEUED),
        ):
            with pytest.raises(DamagedRow, match="study 'bad' is damaged"):
                change()


def test_flipped_bytes_of_the_data_are_seen(tmp_path):
    url = str(tmp_path / "hpo.db")
    with Store.open(url) as store:
        study = make_study(store, spec="name: digits\n# a comment that nothing depends on\n")
        (trial,) = make_trials(store, study, 16)
        store.finish_trial(trial.id, RESULT, make_points(40, 1))
    with sqlite3.connect(url) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    sound = (tmp_path / "hpo.db").read_bytes()
    at = sound.index(b"nothing depends")
    (tmp_path / "hpo.db").write_bytes(sound[:at] + b"N" + sound[at + 1 :])
    assert "the file of study digits" in complaints(url)["checksums"]


class TestUpgrade:
    @pytest.fixture
    def old(self, new_url):
        """A database of an earlier release with a row of every kind that is beyond the bounds."""
        url = new_url()
        database = Database(url, timeout_seconds=5)
        with migrations.changing(database.engine) as connection:
            migrations.bring_to(connection, "0003")
            write_everything(connection)
            for statement in (
                "UPDATE trials SET epochs_to_target = 1e-300 WHERE id = 1",
                "UPDATE convergence SET samples = 9223372036854775807 WHERE step = 100",
                "UPDATE outcomes SET seconds = 1e308",
            ):
                connection.exec_driver_sql(statement)
        database.close()
        return url

    def test_bad_rows_are_set_aside_and_named(self, old):
        with Store.open(old) as store:
            bad, _ = store.trials(1)
            assert bad.state is TrialState.FAILED and "epochs_to_target is 1e-300" in bad.reason
            assert [point.step for point in store.points(bad.id)] == [50]
            (outcome,) = store.outcomes(1)
            assert outcome.state is TrialState.FAILED and outcome.seconds == 0
        found = complaints(old)
        assert "3 rows of an earlier release" in found["quarantine"]
        assert "checksums" not in found

    def test_what_was_stored_is_summed(self, old):
        Store.open(old).close()
        below(old, "UPDATE convergence SET metric = 0.1 WHERE step = 50")
        assert "trial 0 of study old" in complaints(old)["checksums"]
