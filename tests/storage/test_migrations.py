"""The schema: what the revisions make is what the tables say."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from store_samples import make_points, make_study, make_trials

from search_spaces.settings import TrainingSettings
from storage import migrations
from storage.database import Database
from storage.errors import SchemaTooNew, StoreUnavailable
from storage.migrations import HEAD, VERSION_TABLE, upgrade
from storage.store import Store
from storage.tables import EARLIER_VALUES, metadata

NOW = "2026-01-01 00:00:00.000000"


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
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: parts(sql) for name, sql in rows if name != VERSION_TABLE}


def parts(sql: str) -> set[str]:
    """What stands between the outer commas; a column that was added later stands on the line of another."""
    before, _, rest = re.sub(r"\s+", " ", sql).partition("(")
    inside, _, after = rest.rpartition(")")
    found, depth, start = {before.strip(), after.strip()}, 0, 0
    for at, sign in enumerate(f"{inside},"):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            found.add(inside[start:at].strip())
            start = at + 1
    return found


def test_revisions_make_the_tables(database):
    upgrade(database.engine)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_revisions_make_the_rules_too(database, path, tmp_path):
    """Alembic's comparison knows nothing of check constraints and of WITHOUT ROWID."""
    upgrade(database.engine)
    engine = create_engine(f"sqlite:///{tmp_path}/direct.db")
    metadata.create_all(engine)
    engine.dispose()
    made, direct = definitions(path), definitions(tmp_path / "direct.db")
    assert made == direct
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
    with pytest.raises(SchemaTooNew, match=f"'9999', and this release knows schemas up to '{HEAD}'; upgrade"):
        Store.open(str(path))


def test_database_of_another_program(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.close()
    before = definitions(path)
    with pytest.raises(StoreUnavailable, match=r"another program uses it, .* named studies; give a new"):
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


def test_trials_of_the_first_schema_are_read_with_the_settings_of_their_time(database, path):
    """A trial as revision 0001 wrote it, beside its study."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        study = {"name": "old", "state": "finished", "workload": "resnet", "metric": "top1", "threshold": 0.9,
                 "higher_is_better": 1, "spec": "", "created_at": NOW, "updated_at": NOW, "message": ""}
        settings = {name: value for name, value in TrainingSettings(optimizer="lars").to_dict().items()
                    if name not in EARLIER_VALUES and name in columns(connection, "trials")}
        trial = {**settings, "study_id": 1, "number": 0, "state": "reached", "global_batch_size": 64, "seed": 1,
                 "purpose": "search", "epochs_to_target": 2.0, "epochs": 2.0, "steps": 10, "seconds": 1.0, "reason": "",
                 "decay_milestones": ""}
        for table, row in (("studies", study), ("trials", trial)):
            names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
    with Store.open(str(path)) as store:
        (read,) = store.trials(store.study("old").id)
    assert read.settings == TrainingSettings(optimizer="lars").to_dict()
    assert read.epochs_to_target == 2.0


def columns(connection, table: str) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table)}
