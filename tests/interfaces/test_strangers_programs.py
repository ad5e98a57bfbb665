"""Programs of other authors, by docs/guides/programs.md alone: swept, raced, forecast, planned, launched and scored.

None of them was written for `hpo`: one for torchrun with option names, a setting and an optimizer of its own, one in
bash and awk that prints sentences, one with click that writes a table.
"""

import shutil
from pathlib import Path

import pytest

import hpo
from tests.interfaces.test_program_examples import hpo_command

STRANGERS = Path(__file__).parent / "strangers"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heavy_ball", "awk", "table"])
def test_a_stranger_is_swept_raced_forecast_planned_launched_and_scored(tmp_path, name):
    shutil.copytree(STRANGERS, tmp_path / "theirs")
    file = tmp_path / "theirs" / f"{name}.yaml"
    document = hpo_command(tmp_path, "run", file, "--folder", tmp_path / "files")
    assert document["study"]["state"] == "finished"
    assert document["trials"]["failed"] == 0 < document["trials"]["reached"]

    result = hpo.read_study(document["study"]["name"], f"sqlite:///{tmp_path}/hpo.db")
    batch = result.spec.full_scale.global_batch_size
    trained = [(trial.global_batch_size, trial.settings, trial.seed) for trial in result.trials]
    assert {trial.global_batch_size for trial in result.raced} == {batch}
    assert all(each not in trained[:at] for at, each in enumerate(trained))
    epochs = document["forecast"]["epochs_to_target"]
    assert 0 < epochs["low"] < epochs["median"] < epochs["high"]

    plan = document["plan"]
    (launched,) = hpo_command(tmp_path, "launch", plan["id"], "--folder", tmp_path / "plan")
    assert launched["state"] in ("reached", "censored")
    (row,) = hpo_command(tmp_path, "calibration")
    assert row["plan_id"] == plan["id"] and row["runs"] == 1
