"""The schema made by the revisions equals that of the tables."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from migration_contract import MigrationContract
from store_samples import make_points, make_study, make_trials, python

from storage import migrations
from storage.database import Database
from storage.errors import SchemaTooNew, StoreUnavailable
from storage.migrations import HEAD, VERSION_TABLE, upgrade
from storage.schema.tables import metadata
from storage.store import Store

pytestmark = pytest.mark.medium


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "hpo.db"


@pytest.fixture
def database(path):
    database = Database(str(path), timeout_seconds=5)
    yield database
    database.close()


def definitions(path: Path) -> dict[str, set[str]]:
    """Each table and index with the parts of its definition, in any order and without the white space."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        ).fetchall()
    connection.close()
    return {name: parts(sql) for name, sql in rows}


def parts(sql: str) -> set[str]:
    """What stands between the outer commas; a column that was added later stands on the line of another."""
    sql = re.sub(
        r"DEFAULT \(([^()]*)\)", r"DEFAULT \1", re.sub(r"\s+", " ", sql)
    )  # as a table that was copied has it
    before, _, rest = re.sub(r'^CREATE TABLE "(\w+)"', r"CREATE TABLE \1", sql).partition("(")
    inside, _, after = rest.rpartition(")")
    found, depth, start = {before.strip(), after.strip()}, 0, 0
    for at, sign in enumerate(f"{inside},"):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            found.add(inside[start:at].strip())
            start = at + 1
    return found


def by_revisions(database: Database) -> None:
    """The tables as a database of the first release gets them, where a new one gets them at once."""
    with migrations.changing(database.engine) as connection:
        migrations.bring_to(connection, "0001")
        migrations.bring_to(connection)
        assert migrations.revision(connection) == HEAD


def test_revisions_make_the_tables(database):
    by_revisions(database)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_revisions_make_the_rules_too(database, path, tmp_path):
    """Alembic's comparison knows nothing of check constraints and of WITHOUT ROWID."""
    by_revisions(database)
    Store.open(str(tmp_path / "direct.db")).close()
    made, direct = definitions(path), definitions(tmp_path / "direct.db")
    assert made == direct and VERSION_TABLE in made
    assert any("CHECK" in line for line in made["trials"])
    assert any("WITHOUT ROWID" in line for line in made["convergence"])


def test_upgrading_again_changes_nothing(database, path):
    upgrade(database.engine)
    before = definitions(path)
    upgrade(database.engine)
    assert definitions(path) == before
    with database.read() as connection:
        assert migrations.revision(connection) == HEAD


def test_upgrading_keeps_what_is_stored_and_foreign_keys_stay_on(path):
    with Store.open(str(path)) as store:
        (trial,) = make_trials(store, make_study(store), 16)
        store.record({trial.id: make_points(2)})
    with Store.open(str(path)) as store:
        assert store.points(trial.id) == make_points(2)
        with store._database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_foreign_keys_are_on_right_after_the_first_upgrade(database):
    upgrade(database.engine)
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_newest_revision_is_the_head():
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_heads() == [HEAD]


def test_schema_of_a_newer_release(path):
    Store.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    with pytest.raises(
        SchemaTooNew, match=f"'9999', but this release knows schemas up to '{HEAD}'; upgrade"
    ):
        Store.open(str(path))


def test_database_of_another_program(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.close()
    before = definitions(path)
    with pytest.raises(
        StoreUnavailable, match=r"another program uses it, .* named studies; give a new"
    ):
        Store.open(str(path))
    assert definitions(path) == before


def test_failed_upgrade_leaves_no_trace(path):
    """The last index of the revision is taken: every table before it must be rolled back."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x INTEGER)")
        connection.execute("CREATE INDEX ix_outcomes_plan_id ON other (x)")
    connection.close()
    with pytest.raises(StoreUnavailable, match="ix_outcomes_plan_id already exists"):
        Store.open(str(path))
    assert set(definitions(path)) == {"other", "ix_outcomes_plan_id"}


class TestSqliteMigrations(MigrationContract):
    @pytest.fixture
    def empty_url(self, path):
        return str(path)


@pytest.mark.slow
class TestPostgresqlMigrations(MigrationContract):
    @pytest.fixture
    def empty_url(self, empty_postgres_url):
        return empty_postgres_url

    def test_first_opened_by_many_processes_at_once(self, empty_url):
        code = "import sys; from storage.store import Store; Store.open(sys.argv[1]).close()"
        processes = [python("-c", code, empty_url, stderr=subprocess.PIPE) for _ in range(2)]
        assert [process.communicate(timeout=60)[1] for process in processes] == [""] * 2

    def test_revisions_make_what_a_new_database_has(self, new_postgres_url):
        found = []
        for make in (by_revisions, lambda database: upgrade(database.engine)):
            database = Database(new_postgres_url(), timeout_seconds=5)
            make(database)
            with database.read() as connection:
                found.append([list(connection.exec_driver_sql(asked)) for asked in SCHEMA])
            database.close()
        revisions, new = found
        for made, direct in zip(revisions, new, strict=True):
            assert made == direct and len(made) > 20


SCHEMA = (
    """SELECT conrelid::regclass::text, contype, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2, 3""",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    """SELECT table_name, column_name, data_type, is_nullable, column_default, identity_generation
    FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2""",
)
"""Constraints, indexes and columns of a PostgreSQL database."""
