"""Parallel coordinates, noise scales and times against their forecasts, compared with the trials they show."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpo import figures
from hpo.dashboard.view import StudyView
from storage.records import CalibrationRow, PlanKind, Trust
from tests.dashboard.dashboard_samples import full_view

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    return full_view(tmp_path_factory.mktemp("figures"))


def test_parallel_coordinates_have_an_axis_for_all_that_varies(view: StudyView) -> None:
    drawn = figures.parallel_coordinates(view.result).data[0]
    dimensions = {each.label.split("<")[0]: each for each in drawn.dimensions}
    trials = [trial for trial in view.result.trials if trial.state.finished]
    assert list(dimensions) == [
        "global batch size",
        "learning rate",
        "nesterov",
        "epochs to target",
    ]
    rates = 10 ** np.array(dimensions["learning rate"].values)  # drawn in decades
    assert rates == pytest.approx([trial.settings["learning_rate"] for trial in trials])
    assert list(dimensions["nesterov"].ticktext) == ["True", "False"]
    epochs = 10 ** np.array(dimensions["epochs to target"].values)
    missed = np.array([trial.epochs_to_target is None for trial in trials])
    assert epochs[missed].min() > epochs[~missed].max()  # what missed the target stands above all


def test_noise_scales_are_those_measured(view: StudyView) -> None:
    assert (
        figures.noise_scale(view.result, view.convergence).layout.annotations[0].text
        == "no trial measured the noise scale"
    )
    measured = dataclasses.replace(
        view.convergence, gradient_noise_scale=100 * view.convergence.epochs
    )
    traces = figures.noise_scale(view.result, measured).data
    assert len(traces) == len(set(view.convergence.trial_id.tolist()))
    for trace in traces:
        assert np.asarray(trace.y) == pytest.approx(100 * np.asarray(trace.x))
    assert sum(trace.showlegend for trace in traces) == 4  # each rung once


def row(seconds: float | None, **more: Any) -> CalibrationRow:
    return CalibrationRow(
        **{
            "plan_id": 1,
            "study": "a <b>name</b>",
            "kind": PlanKind.FORECAST,
            "trust": Trust.HIGH,
            "machine": "local",
            "global_batch_size": 256,
            "predicted_epochs_median": 10.0,
            "predicted_epochs_low": 8.0,
            "predicted_epochs_high": 12.0,
            "observed_epochs_mean": 11.0,
            "runs": 1,
            "reached": 1,
            "inside": True,
            "predicted_seconds_median": 100.0,
            "predicted_seconds_low": 80.0,
            "predicted_seconds_high": 150.0,
            "observed_seconds_mean": seconds,
            **more,
        }
    )


def test_times_are_held_against_their_intervals() -> None:
    figure = figures.calibration_of_time(
        [row(140.0), row(151.0), row(None), row(90.0, predicted_seconds_median=None)]
    )
    points = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert list(points["inside the interval"].y) == [140.0]
    assert list(points["outside"].y) == [151.0]
    assert len(points) == 2
    assert "&lt;b&gt;" in points["outside"].hovertext[0]  # a name is text, not markup


def test_the_figures_are_those_that_hpo_names(tmp_path: Path) -> None:
    assert sorted(figures.__all__) == figures.__all__
    assert all(callable(getattr(figures, name)) for name in figures.__all__)
