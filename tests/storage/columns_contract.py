"""What every database must do with points in columns; part of the store's contract."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from store_samples import make_points, make_trials

from storage.errors import InvalidRecord, NotFound
from storage.records import Convergence

NAMES = [field.name for field in dataclasses.fields(Convergence)]
COUNTS = pytest.mark.parametrize("count", [3, 700])  # as rows, and by COPY where there is one


def columns_of(points: dict[int, list]) -> Convergence:
    """Return the points in columns, converted independently of the store."""
    rows = [
        (trial_id, *dataclasses.astuple(point))
        for trial_id, of_trial in points.items()
        for point in of_trial
    ]
    return Convergence(*(np.array(column) for column in zip(*rows, strict=True)))


def assert_equal(found: Convergence, expected: Convergence) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


class ColumnsContract:
    @COUNTS
    def test_columns_are_recorded_as_points_are(self, store, study, count):
        first, second, third = make_trials(store, study, 16, 16, 16)
        points = {
            trial.id: make_points(count, first_step=trial.number) for trial in (first, second)
        }
        store.record_columns(columns_of(points))
        assert_equal(store.convergence([first.id, second.id, third.id]), columns_of(points))
        store.record({third.id: make_points(count)})
        assert store.points(third.id) == make_points(count)

    @COUNTS
    def test_what_is_no_number_comes_back_from_columns(self, store, study, count):
        (trial,) = make_trials(store, study, 16)
        columns = columns_of({trial.id: make_points(count)})
        for name in ("train_loss", "loss", "metric", "gradient_noise_scale"):
            getattr(columns, name)[:3] = (math.nan, math.inf, -math.inf)
        columns.step[1:] += 2**40
        columns.samples[1:] += 2**50
        store.record_columns(columns)
        assert_equal(store.convergence([trial.id]), columns)
        assert store.points(trial.id)[0].gradient_noise_scale is None

    @COUNTS
    def test_the_later_point_at_a_step_counts(self, store, study, count):
        """In any order, also relative to points that were already stored."""
        (trial,) = make_trials(store, study, 16)
        store.record({trial.id: make_points(count + 5)})
        columns = columns_of({trial.id: make_points(count)})
        generator = np.random.default_rng(0)
        rows = np.concatenate([generator.permutation(count), generator.permutation(count)])
        twice = Convergence(*(getattr(columns, name)[rows] for name in NAMES))
        twice.loss[:] = np.arange(2 * count)
        store.record_columns(twice)
        found = store.convergence([trial.id])
        assert found.step.tolist() == list(range(count + 5))
        expected = np.empty(count)
        expected[rows[count:]] = np.arange(count, 2 * count)
        np.testing.assert_array_equal(found.loss[:count], expected)

    @pytest.mark.medium
    @COUNTS
    @pytest.mark.parametrize(
        ("name", "value", "kind", "message"),
        [
            ("trial_id", 99, NotFound, "no trial with id 99"),
            ("learning_rate", math.nan, InvalidRecord, "learning_rate"),
            ("epochs", math.nan, InvalidRecord, "epochs"),
            ("global_batch_size", 2**40, InvalidRecord, "out of range"),
        ],
    )
    def test_columns_are_written_all_or_none(self, store, study, count, name, value, kind, message):
        if name == "global_batch_size" and "sqlite" in store.url:
            pytest.skip("SQLite's integers have 64 bits everywhere")
        (trial,) = make_trials(store, study, 16)
        columns = columns_of({trial.id: make_points(count)})
        getattr(columns, name)[-1] = value
        with pytest.raises(kind, match=message):
            store.record_columns(columns)
        assert store.points(trial.id) == []
        store.record({trial.id: make_points(count)})  # the connection is as good as before
        assert len(store.points(trial.id)) == count

    def test_columns_of_other_shapes_are_refused(self, store, study):
        (trial,) = make_trials(store, study, 16)
        columns = columns_of({trial.id: make_points(3)})
        for name, column, message in (
            ("loss", np.zeros(2), "one length"),
            ("loss", np.zeros((3, 1)), "one length"),
            ("step", np.array(["a"] * 3), "column step of the points must hold numbers"),
        ):
            with pytest.raises(InvalidRecord, match=message):
                store.record_columns(dataclasses.replace(columns, **{name: column}))
        store.record_columns(Convergence(*(np.zeros(0) for _ in NAMES)))
        assert store.points(trial.id) == []
