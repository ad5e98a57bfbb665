"""What every database must do with databases of earlier releases; one class, inherited once for each database.

A subclass gives an ``empty_url`` fixture: a new database without tables.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, insert
from store_samples import make_study, new_plan, python

from search_spaces.settings import TrainingSettings
from storage import migrations
from storage.database import Database
from storage.records import Law, PlanKind, SettingForecast, StudyState, TrialState, Trust
from storage.schema.setting_types import EARLIER_VALUES
from storage.store import Store

RELEASED = ("0001", "0002", "0003")
LATER_COLUMNS = ("samples", "ranks_per_node")  # of trials and plans, since revision 0003
THEN = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = TrainingSettings(
    optimizer="lars", momentum_form="inside", decay_milestones=(30.0, 60.0), nesterov=True
)
"""What the trainings of earlier releases did; LARS then wrote another momentum form than it had."""


class MigrationContract:
    @pytest.fixture(
        params=[
            pytest.param(each, marks=pytest.mark.slow if each == "0002" else ())  # between two
            for each in RELEASED
        ]
    )
    def released(self, request, empty_url) -> str:
        """The revision of a database that was written by an earlier release."""
        database = Database(empty_url, timeout_seconds=5)
        with migrations.changing(database.engine) as connection:
            migrations.bring_to(connection, request.param)
            write_everything(connection)
        database.close()
        return str(request.param)

    def test_everything_an_earlier_release_wrote_is_read(self, empty_url, released):
        with Store.open(empty_url) as store:
            study = store.study("old")
            assert (
                study.state,
                study.owner,
                study.priority,
                study.queued_at,
                study.attempts,
                study.folder,
            ) == (StudyState.FINISHED, "", 0, None, 0, "")
            reached, running = store.trials(study.id)
            assert reached.settings == SETTINGS.to_dict()
            assert (reached.state, reached.epochs_to_target, reached.samples) == (
                TrialState.REACHED,
                2.0,
                6400,
            )
            assert (running.state, running.samples) == (TrialState.RUNNING, None)
            assert [point.samples for point in store.points(reached.id)] == [3200, 6400]
            (forecast,) = store.forecasts(study.id)
            assert forecast.trust is Trust.LOW
            assert forecast.settings == (SettingForecast("learning_rate", 1.0, 0.5, 2.0),)
            assert forecast.laws == (Law("epochs", "minimum", 3.0, 2.0, 4.0),)
            (plan,) = store.plans(study.id)
            assert plan.settings == SETTINGS.to_dict()
            assert (
                plan.kind,
                plan.launcher,
                plan.nodes,
                plan.workers,
                plan.ranks_per_node,
                plan.limited_by,
            ) == (PlanKind.LINEAR_SCALING, "local", 3, 16, 6, "")
            (outcome,) = store.outcomes(plan.id)
            assert (outcome.epochs_to_target, outcome.restarts, outcome.nodes, outcome.source) == (
                5.0,
                0,
                None,
                "",
            )
            assert store.sample_images(plan.id) == (
                {outcome.id: {"title": "old"}} if released >= "0002" else {}
            )

    def test_an_earlier_database_does_what_a_new_one_does(self, empty_url, released):
        with Store.open(empty_url) as store:
            study = store.study("old")
            assert store.add_plan(new_plan(study, kind=PlanKind.IMPORTED)).kind is PlanKind.IMPORTED
            store.requeue_study(study.id)
            lease = store.claim_study("w", lease_seconds=60)
            assert store.leased(lease).requeue_running(study.id)[0].number == 1
            store.release_study(lease, StudyState.FINISHED)
            assert make_study(store).id > study.id
            store.delete_study(study.id)
            assert [row.study.name for row in store.page_studies()] == ["digits"]
            assert store.calibration() == []

    def test_an_earlier_database_gets_the_tables_of_a_new_one(self, empty_url, released):
        Store.open(empty_url).close()
        database = Database(empty_url, timeout_seconds=5)
        with database.read() as connection:
            assert migrations.differences(connection) == []
        database.close()

    def test_a_revision_can_be_taken_back(self, empty_url, released):
        Store.open(empty_url).close()
        database = Database(empty_url, timeout_seconds=5)
        with migrations.changing(database.engine) as connection:
            config = Config()
            config.set_main_option("script_location", "storage:migrations")
            config.set_main_option("path_separator", "os")
            config.attributes["connection"] = connection
            command.downgrade(config, "0002")
            assert migrations.revision(connection) == "0002"
        database.close()
        self.test_everything_an_earlier_release_wrote_is_read(empty_url, released)

    @pytest.mark.slow
    @pytest.mark.parametrize("released", RELEASED[:1], indirect=True)
    def test_several_processes_open_an_earlier_database_at_once(self, empty_url, released):
        code = "import sys; from storage.store import Store; print(len(Store.open(sys.argv[1]).trials(1)))"
        processes = [python("-c", code, empty_url, stderr=subprocess.PIPE) for _ in range(2)]
        assert [process.communicate(timeout=60) for process in processes] == [("2\n", "")] * 2


def write_everything(connection: Connection) -> None:
    """A row in every table, as the tables were then."""
    then = MetaData()
    then.reflect(connection)
    settings = {
        name: (",".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in {**SETTINGS.to_dict(), "momentum_form": "outside"}.items()
        if name in then.tables["trials"].c and name not in EARLIER_VALUES
    }

    def write(table: str, **values: Any) -> None:
        if table in then.tables:
            known = {
                name: value
                for name, value in values.items()
                if name not in LATER_COLUMNS or name in then.tables[table].c
            }
            connection.execute(insert(then.tables[table]).values(known))

    interval = {"epochs_median": 3.0, "epochs_low": 2.0, "epochs_high": 4.0}
    write(
        "studies",
        name="old",
        state="finished",
        workload="resnet",
        metric="top1",
        threshold=0.9,
        higher_is_better=True,
        spec="",
        created_at=THEN,
        updated_at=THEN,
        message="",
    )
    trial = {
        **settings,
        "study_id": 1,
        "global_batch_size": 64,
        "seed": 1,
        "purpose": "search",
        "reason": "",
    }
    write(
        "trials",
        **trial,
        number=0,
        state="reached",
        epochs_to_target=2.0,
        epochs=2.0,
        steps=100,
        seconds=1.0,
        samples=6400,
    )
    write("trials", **trial, number=1, state="running", started_at=THEN)
    for step in (50, 100):
        write(
            "convergence",
            trial_id=1,
            step=step,
            samples=64 * step,
            epochs=step / 50,
            seconds=step / 100,
            loss=0.1,
            metric=0.9,
            learning_rate=0.1,
            global_batch_size=64,
        )
    write(
        "forecasts",
        study_id=1,
        global_batch_size=512,
        **interval,
        trust="low",
        reason="",
        created_at=THEN,
    )
    write(
        "forecast_settings",
        forecast_id=1,
        name="learning_rate",
        position=0,
        median=1.0,
        low=0.5,
        high=2.0,
    )
    write(
        "laws",
        forecast_id=1,
        name="epochs",
        parameter="minimum",
        position=0,
        median=3.0,
        low=2.0,
        high=4.0,
    )
    write(
        "plans",
        **settings,
        study_id=1,
        forecast_id=1,
        kind="linear_scaling",
        machine="local",
        nodes=3,
        workers=16,
        global_batch_size=512,
        local_batch_size=32,
        directory="",
        created_at=THEN,
        ranks_per_node=6,
    )
    write(
        "outcomes",
        plan_id=1,
        seed=1,
        backend="torch",
        workers=16,
        state="reached",
        epochs_to_target=5.0,
        epochs=5.0,
        seconds=9.0,
        reason="",
        created_at=THEN,
    )
    write("exhibits", outcome_id=1, content='{"title": "old"}')
