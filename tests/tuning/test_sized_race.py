"""A race over sizes trains the full-scale model, and its budget is counted in that model's samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import hpo
from hpo.runs.price import study_price
from hpo.study.sizes import costly_samples, points, rung_in_words
from hpo.study.spec import StudySpec
from tests.tuning.wide_quadratic import Wide

STUDY: dict[str, Any] = {
    "name": "sized race",
    "workload": "tests.tuning.wide_quadratic:Wide",
    "data": {"noise_scale": 10.0, "train_samples": 2048},
    "target": {"metric": "loss", "at_most": 0.05},
    "ladder": {"global_batch_size": [16, 32, 64], "width": [2, 4]},
    "full_scale": {"global_batch_size": 128, "width": 8},
    "search": {
        "learning_rate": {"log_uniform": [0.01, 2.0], "role": "scaled"},
        "momentum": 0.0,
        "decay": "constant",
        "warmup_epochs": 0.0,
        "normalization_batch_size": 1,
    },
    "budget": {"trials": 24, "epochs_per_trial": 40, "race": 400_000},
}


def study(**changes: Any) -> StudySpec:
    return StudySpec.from_dict({**STUDY, **changes})


def test_a_race_is_at_the_full_scale_unless_the_sweep_trains_there():
    assert study().race_batch == 128
    assert study(full_scale={"global_batch_size": 64, "width": 8}).race_batch == 64
    assert study(full_scale={"global_batch_size": 64, "width": 4}).race_batch is None
    assert study(budget={"trials": 24, "epochs_per_trial": 40, "race": 0}).race_batch is None


def test_samples_of_smaller_models_cost_as_many_of_the_full_one_as_their_width_squared():
    spec = study()
    assert costly_samples(spec, 1600, {"width": 2}) == pytest.approx(1600 / 16)
    assert costly_samples(spec, 1600, {"width": 4}) == pytest.approx(1600 / 4)
    assert costly_samples(spec, 1600, {}) == 1600  # a plan's run has the full size
    plain = study(ladder=[16, 32], full_scale={"global_batch_size": 128})
    assert costly_samples(plain, 1600, {"width": 2}) == 1600


def test_the_price_of_a_race_is_a_quarter_of_what_the_sweep_costs():
    spec = study(budget={"trials": 24, "epochs_per_trial": 40})
    price = study_price(spec, Wide(spec.data), timed=False)
    assert (
        price.race_samples < 0.25 * price.sweep_samples / 4
    )  # all models are half as wide or less
    assert price.race_samples > 0.25 * price.sweep_samples / 16


class Heard(hpo.Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.slow
def test_the_large_model_is_raced_within_its_samples(tmp_path: Path):
    spec, heard = study(), Heard()
    storage = f"sqlite:///{tmp_path / 'hpo.db'}"
    result = hpo.run_study(spec, storage, folder=tmp_path, progress=heard)
    assert result.complete
    (said,) = (line for line in heard.lines if "at 128, width 8" in line)
    assert said.startswith("racing") and "% of the sweep's cost" in said
    assert len(result.raced) >= 2
    for trial in result.raced:
        assert (trial.global_batch_size, trial.settings["width"]) == (128, 8)
    assert math.fsum(trial.samples or 0 for trial in result.raced) <= 1.05 * 400_000
    swept = {
        rung_in_words(trial.global_batch_size, (("width", trial.settings["width"]),))
        for trial in result.swept
    }
    assert swept == {rung_in_words(batch, point) for point in points(spec) for batch in spec.ladder}
    made = result.forecast
    assert made is not None and made.numbers.raced is not None
    assert made.settings.own == {"width": 8}
    assert "width is" not in made.reason  # it was trained there

    other = hpo.run_study(
        study(name="poor", budget={"trials": 24, "epochs_per_trial": 40}),
        storage,
        folder=tmp_path,
        progress=heard,
    )
    cost = math.fsum(
        (trial.samples or 0) * (trial.settings["width"] / 8) ** 2 for trial in other.swept
    )
    assert other.race_samples == int(0.25 * cost)
