"""The report of a study of the best within a fixed budget shows the metric, and mentions no target."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpo
from hpo.dashboard import figures
from hpo.dashboard.next_steps import next_steps
from hpo.dashboard.page import headline, pictures, rungs_table
from hpo.dashboard.view import load_study_view
from hpo.runs.notebook import forecast_html, study_html
from hpo.study.spec import StudySpec

STUDY = {
    "name": "report",
    "workload": "noisy_quadratic",
    "data": {"train_samples": 1024},
    "target": {"metric": "loss", "best_within": {"epochs": 8}},
    "ladder": [16, 32, 64],
    "full_scale": {"global_batch_size": 128},
    "search": {"optimizer": "sgd", "learning_rate": {"log_uniform": [0.001, 1], "role": "scaled"}},
    "budget": {"trials": 18},
}


@pytest.mark.slow
def test_the_report_speaks_of_the_metric(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'hpo.db'}"
    hpo.run_study(StudySpec.from_dict(STUDY), storage, folder=tmp_path)
    view = load_study_view("report", storage)
    result = view.result
    assert result.forecast is not None and result.forecast.numbers.best is not None
    told = result.forecast.numbers.best.interval
    assert f"loss {told.median:.4g} within 8 epochs" in headline(result)
    table = rungs_table(result)
    assert "best loss" in table.columns and "best epochs" not in table.columns
    shown = {each.key: each for each in pictures(view)}
    assert shown["ladder"].heading == "Best loss against batch size"
    assert shown["response-learning_rate"].heading == "Best loss against learning rate"
    ladder = shown["ladder"].figure
    assert ladder.layout.yaxis.title.text == "best loss within 8 epochs"
    [forecast] = [trace for trace in ladder.data if trace.name == "forecast, 90 % interval"]
    assert list(forecast.y) == [pytest.approx(told.median)]
    curves = figures.learning_curves(result, view.convergence)
    assert not curves.layout.shapes  # no line of a target
    assert next_steps(view)[0].command.startswith("hpo launch")
    html = study_html(result.to_dict(), ["learning_rate"])
    assert "best loss" in html and "epochs to target" not in html
    assert "loss in 8 epochs" in forecast_html(result.forecast.to_dict())
