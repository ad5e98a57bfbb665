"""A value changed behind the store, in any column of any table: no page fails, and no other owner is affected."""

import contextlib
import sqlite3

import pytest
from api_server import path_of, points_of, served, spec_of
from swept_ladder import write_trials

from search_spaces.settings import TrainingSettings
from storage.records import NewOutcome, NewTrial, StudyState, TrialResult, TrialState

NO_UTF_8, _NO_UTF_8 = object(), "CAST(x'ff61' AS TEXT)"
WRONG = [b"\xff\xfe", "garbage", NO_UTF_8, -1, 2**62, 1e308, float("inf"), "", "{"]
STUDY = path_of("bowl")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    with served(folder) as api:
        assert api.submit().status_code == 201
        assert api.submit("other", spec=spec_of("other"), owner="eve").status_code == 201
        study = api.store.study("bowl")
        (first,) = api.store.add_trials(
            study.id,
            [
                NewTrial(
                    global_batch_size=16,
                    seed=99,
                    settings=TrainingSettings(learning_rate=0.07).to_dict(),
                )
            ],
        )
        reached = TrialResult(
            state=TrialState.REACHED, epochs_to_target=1.5, epochs=1.5, steps=30, seconds=1.0
        )
        api.store.finish_trial(first.id, reached, points_of(3))
        write_trials(api.store, study.id, train_samples=4096, best_metric=0.09)
        api.store.set_study_state(study.id, StudyState.FINISHED)
        plan = api.call(
            "POST",
            f"{STUDY}/plans",
            json={"global_batch_size": 128, "machine": "local", "workers": 2},
        ).json()["plan"]["id"]
        api.store.add_outcome(
            NewOutcome(
                plan_id=plan,
                seed=0,
                backend="torch",
                workers=2,
                state=TrialState.REACHED,
                epochs_to_target=5.0,
                epochs=5.0,
                seconds=3.0,
                nodes=1,
                samples_per_second=100.0,
            )
        )
        yield api, folder / "hpo.db"


def reads():
    of_a_study = ("", "/trials", "/trials/0", "/convergence?trial=0&column=metric", "/plans")
    of_a_plan = ("", "/script", "/job", "/settings")
    yield from (f"{STUDY}{path}" for path in (*of_a_study, "/logs"))
    yield from (f"/plans/1{path}" for path in of_a_plan)
    yield from ("/studies", "/calibration")


@contextlib.contextmanager
def damaged(file, table, column, value):
    """One row with another value, as long as the context lasts; False where the database does not take it."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        columns = list(connection.execute(f"PRAGMA table_info({table})"))
        key = [each[1] for each in columns if each[5]]
        first = f"({', '.join(key)}) = (SELECT {', '.join(key)} FROM {table} ORDER BY {', '.join(key)} LIMIT 1)"
        (before,) = connection.execute(f"SELECT {column} FROM {table} WHERE {first}").fetchone()
        try:
            if value is NO_UTF_8:
                connection.execute(f"UPDATE {table} SET {column} = {_NO_UTF_8} WHERE {first}")
            else:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {first}", (value,))
        except sqlite3.IntegrityError:
            yield False
            return
        try:
            yield True
        finally:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {first}", (before,))


TABLES = (
    "studies",
    "trials",
    "convergence",
    "forecasts",
    "forecast_settings",
    "laws",
    "plans",
    "outcomes",
    "events",
    "tokens",
)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_no_value_in_any_column_fails_a_page_or_reaches_another_owner(place, table):
    api, file = place
    with contextlib.closing(sqlite3.connect(file)) as connection:
        columns = list(connection.execute(f"PRAGMA table_info({table})"))
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() > (0,)
    failed = []
    for place_of, (name, key) in enumerate((each[1], each[5]) for each in columns):
        if key:
            continue
        for turn in (0,) if table in ("trials", "plans") else (0, 2, 5):
            value = WRONG[(place_of + turn) % len(WRONG)]
            with damaged(file, table, name, value) as taken:
                if not taken:
                    continue
                answers = [(path, api.call("GET", path)) for path in reads()]
                answers += [
                    (f"{path} of eve", api.call("GET", path, owner="eve"))
                    for path in ("/studies", path_of("other"), "/me")
                ]
                failed += [
                    (name, value, path, answer.status_code, answer.text)
                    for path, answer in answers
                    if answer.status_code >= 500
                    or (path.endswith("of eve") and answer.status_code != 200)
                ]
    api.app.state.context.tokens.forget()
    assert failed == []


@pytest.mark.parametrize(
    "name",
    [
        "epochs_to_target",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("learning_rate", "optimizer", "state")
        ),
    ],
)
def test_a_forecast_leaves_out_what_is_damaged(place, name):
    api, file = place
    with damaged(file, "trials", name, "garbage") as taken:
        assert taken
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("DELETE FROM fits")
            connection.commit()
        answer = api.call("GET", f"{STUDY}/forecast?at=256")
        assert answer.status_code == 200, answer.text
