"""Parquet: the columns are those of the store, each with its type and unit."""

import dataclasses
import sys

import numpy as np
import pytest
from pyarrow import parquet
from store_samples import OTHER_SETTINGS, make_points, make_study, make_trials

from storage.errors import NotFound, StoreError
from storage.maintenance import parquet as export
from storage.records import ConvergencePoint, NewTrial, TrialResult, TrialState
from storage.schema.setting_types import SETTING_TYPES
from storage.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "hpo.db")) as store:
        study = make_study(store)
        first, second = make_trials(store, study, 16, 32)
        (third,) = store.add_trials(
            study.id, [NewTrial(global_batch_size=64, seed=5, settings=OTHER_SETTINGS)]
        )
        store.start_trials([first.id, third.id])
        store.finish_trial(
            first.id,
            TrialResult(state=TrialState.REACHED, epochs_to_target=3.5, epochs=4, steps=9),
            make_points(3),
        )
        unmeasured = ConvergencePoint(7, 448, 1.0, 2.0, float("nan"), float("inf"), 0.5, 0.1, 64)
        store.record({third.id: [unmeasured]})
        assert second.state is TrialState.QUEUED
        yield store


def test_trials(store, tmp_path):
    written = export.write_parquet(store, "digits", tmp_path / "out")
    assert written.trial_rows == 3
    table = parquet.read_table(written.trials)
    for row, trial in zip(table.to_pylist(), store.trials(1), strict=True):
        for field in dataclasses.fields(trial):
            if field.name not in ("id", "study_id", "settings"):
                assert row[field.name] == getattr(trial, field.name), field.name
        assert {name: row[name] for name in SETTING_TYPES} == dict(trial.settings)
    assert table.schema.field("warmup_epochs").metadata == {b"unit": b"epochs"}
    assert table.schema.field("global_batch_size").metadata == {b"unit": b"samples"}
    assert str(table.schema.field("started_at").type) == "timestamp[us, tz=UTC]"
    assert table.schema.metadata[b"study"] == b"digits"
    assert table.schema.metadata[b"target"] == b"top1 >= 0.96"


def test_convergence(store, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "TRIALS_AT_A_TIME", 1)  # a row group a trial
    written = export.write_parquet(store, "digits", tmp_path)
    assert written.convergence_rows == 4
    rows = parquet.read_table(written.convergence).to_pylist()
    assert [(row["trial"], row["step"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (2, 7)]
    points = {trial.number: store.points(trial.id) for trial in store.trials(1)}
    for row, point in zip(rows, [*points[0], *points[2]], strict=True):
        for field in dataclasses.fields(point):
            value = getattr(point, field.name)
            assert row[field.name] == (None if value is None or np.isnan(value) else value), (
                field.name
            )
    units = {
        field.name: (field.metadata or {}).get(b"unit")
        for field in parquet.read_schema(written.convergence)
    }
    assert units["seconds"] == b"seconds"
    assert units["step"] == b"optimizer steps"
    assert units["gradient_noise_scale"] == b"samples"
    assert units["metric"] is None


def test_a_study_without_trials(store, tmp_path):
    make_study(store, "empty")
    written = export.write_parquet(store, "empty", tmp_path)
    assert (written.trial_rows, written.convergence_rows) == (0, 0)
    assert parquet.read_table(written.convergence).num_rows == 0


def test_units_name_columns_that_are_there(store, tmp_path):
    written = export.write_parquet(store, "digits", tmp_path)
    columns = {
        *parquet.read_schema(written.trials).names,
        *parquet.read_schema(written.convergence).names,
    }
    assert export.UNITS.keys() <= columns
    timed = {
        name
        for name in columns
        if name.endswith(("_epochs", "_batch_size", "_at")) or name == "epochs"
    }
    assert timed <= export.UNITS.keys()


def test_what_cannot_be_written(store, tmp_path, monkeypatch):
    with pytest.raises(NotFound, match="did you mean 'digits'"):
        export.write_parquet(store, "digit", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written .*; give a writable folder"):
        export.write_parquet(store, "digits", tmp_path / "file")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        StoreError,
        match=r"needs pyarrow, which is not installed; pip install 'largebatch\[export\]'",
    ):
        export.write_parquet(store, "digits", tmp_path)
