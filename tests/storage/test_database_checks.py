"""`hpo db check` finds the planted damage, and nothing in an intact database."""

import contextlib
import random
import sqlite3

import pytest
from sqlalchemy import update
from store_samples import make_points, make_study, make_trials, new_plan

from storage import migrations
from storage.database import Database
from storage.errors import StoreUnavailable
from storage.maintenance import maintenance
from storage.records import StudyState, TrialResult, TrialState
from storage.schema import tables
from storage.store import Store

pytestmark = pytest.mark.medium

SOUND = {
    "integrity",
    "kinds",
    "references",
    "schema",
    "checksums",
    "numbers",
    "quarantine",
    "curves",
    "repetitions",
    "trials",
    "plans",
    "checkpoints",
}


@pytest.fixture
def url(new_url):
    url = new_url()
    with Store.open(url) as store:
        study = make_study(store)
        trials = make_trials(store, study, 16, 32)
        store.finish_trial(
            trials[0].id, TrialResult(state=TrialState.REACHED, epochs_to_target=3), make_points(4)
        )
        store.finish_trial(
            trials[1].id, TrialResult(state=TrialState.FAILED, reason="crashed at once")
        )
    return url


def complaints(url, folder=None):
    return {
        each.name: f"{each.message}; {each.way_out}"
        for each in maintenance.check(url, folder)
        if each.level != "ok"
    }


def test_a_sound_database(url, tmp_path):
    found = maintenance.check(url, tmp_path)
    assert {each.name for each in found} == SOUND
    assert [each for each in found if each.level != "ok"] == []


def test_trials_without_curves_and_left_running(url):
    with Store.open(url) as store:
        study = store.study("digits")
        bare, running = make_trials(store, study, 64, 64)
        store.finish_trial(bare.id, TrialResult(state=TrialState.CENSORED, epochs=3))
        store.start_trials([running.id])
        store.set_study_state(study.id, StudyState.FINISHED)
    found = complaints(url)
    assert set(found) == {"curves", "trials"}
    assert "1 finished trials have no convergence point, in digits" in found["curves"]
    assert "marked as running in studies that are not running: digits" in found["trials"]


def test_trainings_that_repeat_each_other(url):
    with Store.open(url) as store:
        study = store.study("digits")
        race = make_trials(store, study, 256, 256, 256, purpose="race")
        make_trials(store, study, 256, 256, purpose="imported")
        make_trials(store, make_study(store, "other"), 256, 256, purpose="race")
    assert complaints(url) == {}
    # as races stored them until such a training was refused
    database = Database(url, timeout_seconds=5)
    with database.write() as connection:
        connection.execute(
            update(tables.trials)
            .where(tables.trials.c.study_id == study.id, tables.trials.c.global_batch_size == 256)
            .values(seed=100_007)
        )
        # of the third the own settings differ, by their values alone
        connection.execute(
            update(tables.trials)
            .where(tables.trials.c.id == race[2].id)
            .values(own_settings='{"layers": 3}')
        )
    database.close()
    found = complaints(url)
    assert set(found) == {"repetitions"}
    assert "digits: trials 2, 3 (race at 256, seed 100007)" in found["repetitions"]
    assert "4" not in found["repetitions"].partition("(")[0]
    assert "count once" in found["repetitions"]


def test_folders_that_are_gone_and_checkpoints_of_nobody(url, tmp_path):
    with Store.open(url) as store:
        study = store.study("digits")
        store.add_plan(new_plan(study, directory=str(tmp_path / "gone")))
        (queued,) = make_trials(store, study, 64)
    folder = tmp_path / "checkpoints" / str(study.id)
    folder.mkdir(parents=True)
    for number in (queued.number, 0, 99):
        (folder / f"{number}.pt").write_text("")
    found = complaints(url, tmp_path)
    assert set(found) == {"plans", "checkpoints"}
    assert str(tmp_path / "gone") in found["plans"]
    assert "2 checkpoints belong to no unfinished trial" in found["checkpoints"]
    assert "0.pt" in found["checkpoints"]
    assert "99.pt" in found["checkpoints"]


def test_tables_that_somebody_changed(url):
    database = Database(url, timeout_seconds=5)
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE laws ADD COLUMN note TEXT")
        connection.exec_driver_sql("DROP INDEX ix_plans_forecast_id")
    database.close()
    found = complaints(url)
    assert set(found) == {"schema"}
    assert "laws" in found["schema"]
    assert "note" in found["schema"]
    assert "ix_plans_forecast_id" in found["schema"]


def test_an_older_schema_is_told_and_upgraded(tmp_path):
    url = str(tmp_path / "old.db")
    database = Database(url, timeout_seconds=5)
    with migrations.changing(database.engine) as connection:
        migrations.bring_to(connection, "0002")
    database.close()
    assert complaints(url) == {
        "schema": f"the schema is 0002, this release needs {migrations.HEAD}; hpo db upgrade"
    }
    assert maintenance.upgrade(url) == ("0002", migrations.HEAD)
    assert complaints(url) == {}
    assert maintenance.upgrade(url) == (migrations.HEAD, migrations.HEAD)


def test_rows_that_point_nowhere(tmp_path):
    url = str(tmp_path / "hpo.db")
    with Store.open(url) as store:
        make_trials(store, make_study(store), 16, 16)
    with sqlite3.connect(
        url
    ) as connection:  # this driver does not enforce foreign keys unless it is told to
        connection.execute("DELETE FROM studies")
    connection.close()
    assert (
        "2 rows of trials refer to missing rows of studies; restore a backup"
        in complaints(url)["references"]
    )


def test_a_damaged_page(tmp_path):
    url = str(tmp_path / "hpo.db")
    with Store.open(url) as store:
        (trial,) = make_trials(store, make_study(store), 16)
        store.record({trial.id: make_points(2000)})
    maintenance.vacuum(url)
    content = bytearray((tmp_path / "hpo.db").read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    (tmp_path / "hpo.db").write_bytes(content)
    try:
        assert "restore a backup" in complaints(url)["integrity"]
    except StoreUnavailable as error:
        assert "the file is damaged: restore a copy" in str(error)


def test_a_wrong_path_does_not_become_a_file(tmp_path):
    for work in (maintenance.check, maintenance.vacuum):
        with pytest.raises(StoreUnavailable, match="there is no file"):
            work(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_ours_is_told_from_others(url, tmp_path, empty_postgres_url):
    assert maintenance.holds_our_tables(url)
    assert not maintenance.holds_our_tables(f"sqlite:///{tmp_path}/new.db")
    assert not maintenance.holds_our_tables(empty_postgres_url)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.slow
def test_every_flipped_bit_that_changes_what_is_stored_is_told(tmp_path):
    """In a file below the store; a bit in the room that no value takes changes nothing."""
    sound = tmp_path / "sound.db"
    with Store.open(str(sound)) as store:
        study = make_study(store, spec="name: digits\n" * 200)
        for trial in make_trials(store, study, *[16] * 50):
            reached = TrialResult(state=TrialState.REACHED, epochs_to_target=3.0, epochs=3.0)
            store.finish_trial(trial.id, reached, make_points(40))
    maintenance.vacuum(str(sound))
    content, stored, told = sound.read_bytes(), values_of(sound), 0
    place_of = random.Random(0)
    for number in range(40):
        changed = bytearray(content)
        changed[place_of.randrange(len(content))] ^= 1 << place_of.randrange(8)
        flipped = tmp_path / f"{number}.db"
        flipped.write_bytes(changed)
        if values_of(flipped) == stored:
            continue
        try:
            assert complaints(str(flipped)), number
        except StoreUnavailable as error:
            assert "damaged" in str(error) or "malformed" in str(error), number
        told += 1
    assert told > 10  # the rest hit empty room


def values_of(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        try:
            tables = [
                row[0].decode()
                for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        except (sqlite3.Error, UnicodeError) as error:
            return repr(error)
