"""Backups: everything stored is restored, into either database, from either of the two."""

import itertools
import json
import random
import sqlite3
import threading
import zipfile

import pytest
from store_samples import (
    forecast_plan,
    make_forecast,
    make_points,
    make_study,
    make_trials,
    new_outcome,
)

from storage import migrations
from storage.database import Database
from storage.errors import Conflict, InvalidRecord, SchemaTooNew, StoreError, StoreUnavailable
from storage.maintenance import archive, maintenance
from storage.records import NewToken, StudyState, TrialResult, TrialState
from storage.schema.tables import metadata
from storage.store import Store

pytestmark = pytest.mark.medium

AWKWARD = (
    "name: digits\n# tab\t, \\N, back\\slash, CR\r, é, \u2028, 'quote', \"quote\", \x0b\x0c\x08\n"
)


def fill(url):
    with Store.open(url) as store:
        study = make_study(store, spec=AWKWARD)
        trials = make_trials(store, study, 16, 32, 64)
        store.start_trials([trial.id for trial in trials[:2]])
        store.finish_trial(
            trials[0].id,
            TrialResult(
                state=TrialState.REACHED,
                epochs_to_target=1 / 3,
                epochs=0.1 + 0.2,
                steps=2**40,
                seconds=1e-300,
                best_metric=float("inf"),
                final_metric=float("-inf"),
                reason="",
            ),
            make_points(300),
        )
        store.finish_trial(
            trials[1].id, TrialResult(state=TrialState.DIVERGED, reason="NaN\tat\nstep 3"), []
        )
        plan = store.add_plan(forecast_plan(study, make_forecast(store, study)))
        outcome = store.add_outcome(new_outcome(plan.id))
        store.add_sample_images(outcome.id, {"references": {"majority": 0.5}})
        store.add_event(study.id, "submitted", "submitted", {"by": "ann"})
        store.add_token(
            NewToken(
                name="laptop", owner="ann", digest="0" * 64, scopes=frozenset({"submit", "read"})
            )
        )
        store.set_study_state(study.id, StudyState.FINISHED, "done")
    return url


def contents(url):
    """Every row of every table, by table, as the database returns them."""
    database = Database(url, timeout_seconds=5)
    try:
        with database.read() as connection:
            return {
                table.name: sorted(map(repr, connection.execute(table.select())))
                for table in metadata.sorted_tables
            }
    finally:
        database.close()


def test_an_archive_restores_into_either_database(new_url, tmp_path, new_postgres_url):
    source, file = fill(new_url()), tmp_path / "backup.zip"
    before = contents(source)
    written = maintenance.backup(source, file)
    assert (written.form, written.schema) == ("archive", migrations.HEAD)
    assert written.rows == sum(map(len, before.values()))
    for target in (f"sqlite:///{tmp_path}/target.db", new_postgres_url()):
        assert maintenance.restore(target, file).rows == written.rows
        assert contents(target) == before


def test_both_databases_write_the_same_archive(tmp_path, new_postgres_url):
    maintenance.backup(fill(f"sqlite:///{tmp_path}/hpo.db"), tmp_path / "sqlite.zip")
    server = new_postgres_url()
    maintenance.restore(server, tmp_path / "sqlite.zip")
    maintenance.backup(server, tmp_path / "postgresql.zip")
    with (
        zipfile.ZipFile(tmp_path / "sqlite.zip") as one,
        zipfile.ZipFile(tmp_path / "postgresql.zip") as other,
    ):
        tables = [name for name in one.namelist() if name.endswith(".tsv")]
        assert len(tables) == len(metadata.tables)
        for name in tables:
            assert one.read(name) == other.read(name), name


def test_what_is_added_after_a_restore_takes_new_numbers(new_url, tmp_path):
    maintenance.backup(fill(new_url()), tmp_path / "backup.zip")
    target = new_url()
    maintenance.restore(target, tmp_path / "backup.zip")
    with Store.open(target) as store:
        study = make_study(store, "another")
        assert study.id > store.study("digits").id
        assert make_trials(store, study, 8)[0].id > 3
        assert store.add_event(study.id, "submitted", "submitted").id > 1


def test_a_copy_of_an_sqlite_file_restores_into_both(tmp_path, new_postgres_url):
    source = fill(f"sqlite:///{tmp_path}/hpo.db")
    before = contents(source)
    assert maintenance.backup(source, tmp_path / "copy.db").form == "sqlite"
    kept = (tmp_path / "copy.db").read_bytes()
    for target in (f"sqlite:///{tmp_path}/target.db", new_postgres_url()):
        maintenance.restore(target, tmp_path / "copy.db")
        assert contents(target) == before
    assert (tmp_path / "copy.db").read_bytes() == kept  # reading a backup does not write to it
    assert [path.name for path in tmp_path.glob("copy.db-*")] == []


def test_a_backup_while_another_writes_holds_whole_transactions(tmp_path):
    url = fill(f"sqlite:///{tmp_path}/hpo.db")
    with Store.open(url) as store:
        study = store.study("digits")
        stop = threading.Event()

        def write():
            seeds = itertools.count(100, 5)
            while not stop.is_set():
                trials = make_trials(store, study, 8, 8, 8, 8, 8, first_seed=next(seeds))
                store.record({trial.id: make_points(3) for trial in trials})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number, name in enumerate(("a.zip", "b.db", "c.zip")):
                maintenance.backup(url, tmp_path / name)
                maintenance.restore(str(tmp_path / f"{number}-restored.db"), tmp_path / name)
        finally:
            stop.set()
            writer.join()
    for number in range(3):
        found = maintenance.check(str(tmp_path / f"{number}-restored.db"))
        assert [each.message for each in found if each.level == "fail"] == []
        with Store.open(str(tmp_path / f"{number}-restored.db")) as store:
            assert (len(store.trials(1)) - 3) % 5 == 0  # five at a time, or none


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_archive_of_an_earlier_schema_is_upgraded(revision, new_url, tmp_path):
    old = str(tmp_path / "old.db")
    database = Database(old, timeout_seconds=5)
    with migrations.changing(database.engine) as connection:
        migrations.bring_to(connection, revision)
        connection.exec_driver_sql(
            "INSERT INTO studies VALUES (7, 'digits', 'finished', 'resnet', 'top1', 0.96, 1, 'name: digits', "
            "'2026-01-01 00:00:00.000000', '2026-01-02 00:00:00.500000', '')"
        )
    database.close()
    written = maintenance.backup(old, tmp_path / "old.zip")
    assert written.schema == revision
    target = new_url()
    maintenance.restore(target, tmp_path / "old.zip")
    with Store.open(target) as store:
        study = store.study("digits")
        assert (study.id, study.owner, study.updated_at.isoformat()) == (
            7,
            "",
            "2026-01-02T00:00:00.500000+00:00",
        )


def test_a_restore_replaces_only_on_demand(new_url, tmp_path):
    source = fill(new_url())
    maintenance.backup(source, tmp_path / "backup.zip")
    before = contents(source)
    with Store.open(source) as store:
        make_study(store, "another")
    with pytest.raises(Conflict, match=r"must be empty to restore into, but its table .* has rows"):
        maintenance.restore(source, tmp_path / "backup.zip")
    with Store.open(source) as store:
        assert store.study("another")
    maintenance.restore(source, tmp_path / "backup.zip", replace=True)
    assert contents(source) == before


def damaged(source, target, change):
    """A copy of an archive, one member of it changed."""
    with zipfile.ZipFile(source) as file, zipfile.ZipFile(target, "w") as out:
        for name in file.namelist():
            out.writestr(name, change(name, file.read(name)))
    return target


def test_a_damaged_archive_leaves_the_database_as_it_was(new_url, tmp_path):
    source = fill(new_url())
    before = contents(source)
    maintenance.backup(source, tmp_path / "backup.zip")

    def half_of(table):
        return lambda name, content: (
            content[: len(content) // 2] if name == f"{table}.tsv" else content
        )

    for broken in (
        damaged(tmp_path / "backup.zip", tmp_path / "cut.zip", half_of("convergence")),
        damaged(tmp_path / "backup.zip", tmp_path / "orphans.zip", half_of("trials")),
    ):
        with pytest.raises(InvalidRecord):
            maintenance.restore(source, broken, replace=True)
        assert contents(source) == before


def test_an_archive_with_flipped_bytes_is_told_to_be_damaged(tmp_path):
    source = fill(str(tmp_path / "hpo.db"))
    before = contents(source)
    maintenance.backup(source, tmp_path / "backup.zip")
    whole, rng = (tmp_path / "backup.zip").read_bytes(), random.Random(0)
    told = []
    for _ in range(24):
        at = rng.randrange(len(whole) - 16)
        noise = bytes(each ^ rng.randrange(1, 256) for each in whole[at : at + 16])
        (tmp_path / "noise.zip").write_bytes(whole[:at] + noise + whole[at + 16 :])
        try:
            maintenance.restore(source, tmp_path / "noise.zip", replace=True)
        except InvalidRecord as error:
            told.append(str(error))
        assert (
            contents(source) == before
        )  # or restored whole, where the noise lay in nothing that is read
    assert sum("noise.zip is damaged: " in each or "or is incomplete" in each for each in told) > 12


def change_of_manifest(change):
    def changed(name, content):
        if name != "manifest.json":
            return content
        plain = json.loads(content)
        change(plain)
        return json.dumps(plain)

    return changed


ODD_MANIFESTS = {
    "schema that is a number": lambda plain: plain.update(schema=3),
    "schema of no form": lambda plain: plain.update(schema="0003x"),
    "no schema": lambda plain: plain.update(schema=""),
    "schema that there is not": lambda plain: plain.update(schema="0000"),
    "columns as numbers": lambda plain: plain["tables"][0].update(columns=[1, 2]),
    "a table twice": lambda plain: plain["tables"].append(plain["tables"][0]),
    "a list": lambda plain: plain.update(tables=[1]),
}


@pytest.mark.parametrize("change", ODD_MANIFESTS.values(), ids=ODD_MANIFESTS.keys())
def test_an_odd_manifest_restores_nothing(tmp_path, change):
    source = fill(str(tmp_path / "hpo.db"))
    before = contents(source)
    maintenance.backup(source, tmp_path / "backup.zip")
    odd = damaged(tmp_path / "backup.zip", tmp_path / "odd.zip", change_of_manifest(change))
    with pytest.raises(StoreError, match=r"odd\.zip"):
        maintenance.restore(source, odd, replace=True)
    assert contents(source) == before


def test_a_bit_that_names_another_compression(tmp_path):
    source = fill(str(tmp_path / "hpo.db"))
    before = contents(source)
    maintenance.backup(source, tmp_path / "backup.zip")
    whole = bytearray((tmp_path / "backup.zip").read_bytes())
    at = whole.index(b"PK\x01\x02") + 10  # in the directory at its end: deflate becomes bzip2
    assert whole[at] == 8
    whole[at] = 12
    (tmp_path / "odd.zip").write_bytes(whole)
    with pytest.raises(InvalidRecord, match=r"odd\.zip"):
        maintenance.restore(source, tmp_path / "odd.zip", replace=True)
    assert contents(source) == before


def test_files_that_are_no_backup(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    maintenance.backup(fill(str(tmp_path / "hpo.db")), tmp_path / "whole.zip")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "whole.zip").read_bytes()[:2000])
    for name, message in {
        "text.zip": "must be an archive that `hpo db backup` wrote",
        "cut.zip": "or is incomplete",
        "none.zip": "there is no file",
    }.items():
        with pytest.raises(InvalidRecord, match=message):
            maintenance.restore(str(tmp_path / "target.db"), tmp_path / name)


def test_an_archive_of_a_newer_release(tmp_path):
    maintenance.backup(fill(str(tmp_path / "hpo.db")), tmp_path / "backup.zip")
    newer = damaged(
        tmp_path / "backup.zip",
        tmp_path / "newer.zip",
        lambda name, content: content.replace(
            f'"schema": "{migrations.HEAD}"'.encode(), b'"schema": "9999"'
        ),
    )
    with pytest.raises(SchemaTooNew, match=r"its schema is '9999'.* upgrade largebatch"):
        maintenance.restore(str(tmp_path / "target.db"), newer)


def test_an_archive_names_only_our_tables(tmp_path):
    maintenance.backup(fill(str(tmp_path / "hpo.db")), tmp_path / "backup.zip")
    foreign = damaged(
        tmp_path / "backup.zip",
        tmp_path / "foreign.zip",
        lambda name, content: content.replace(
            b'"name": "laws"', b'"name": "laws; DROP TABLE studies"'
        ),
    )
    with pytest.raises(
        InvalidRecord, match="must hold tables of largebatch, but holds 'laws; DROP"
    ):
        maintenance.restore(str(tmp_path / "target.db"), foreign)


def test_a_backup_is_never_overwritten_and_never_half(tmp_path):
    url = fill(str(tmp_path / "hpo.db"))
    (tmp_path / "backup.zip").write_text("mine")
    with pytest.raises(Conflict, match=r"must be a new file, but .* exists"):
        maintenance.backup(url, tmp_path / "backup.zip")
    for name in ("backup.zip", "backup.db"):
        with pytest.raises(
            StoreUnavailable, match=r"cannot be written .*; give a file in a writable folder"
        ):
            maintenance.backup(url, tmp_path / "no" / "such" / name)
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreUnavailable, match="there is no file"):
        maintenance.backup(str(tmp_path / "none.db"), tmp_path / "backup.zip")
    sqlite3.connect(tmp_path / "foreign.db").close()
    with pytest.raises(StoreUnavailable, match="it holds no tables of largebatch"):
        maintenance.backup(str(tmp_path / "foreign.db"), tmp_path / "backup.zip")
    assert not (tmp_path / "none.db").exists()
    assert not (tmp_path / "backup.zip").exists()


def test_the_server_is_not_copied_as_a_file(new_postgres_url, tmp_path):
    with pytest.raises(
        InvalidRecord, match=r"the database is PostgreSQL; name the file backup.zip"
    ):
        maintenance.backup(fill(new_postgres_url()), tmp_path / "backup.db")


def test_a_manifest_tells_what_is_inside(tmp_path):
    maintenance.backup(fill(str(tmp_path / "hpo.db")), tmp_path / "backup.zip")
    manifest = archive.read_manifest(tmp_path / "backup.zip")
    assert {table.name: table.rows for table in manifest.tables} | {
        "trials": 3,
        "convergence": 300,
    } == {table.name: table.rows for table in manifest.tables}
