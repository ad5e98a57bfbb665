"""A user's own workload, outside the project, through the whole of `hpo run`."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import SpecError
from hpo.planning.plan import planned_job
from hpo.runs.checks import check_workload
from hpo.study.jobs import training_job
from hpo.study.sizes import points
from hpo.study.spec import StudySpec, load_study, parse_study
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads import Workload

pytestmark = [pytest.mark.fit, pytest.mark.processes]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_workload"


@pytest.mark.slow
def test_the_example_runs_and_prints_one_json_document(one_ray, tmp_path, monkeypatch):
    """As it is shipped, but for a smaller budget; tests/test_distribution.py runs it by the installed command."""
    assert len((EXAMPLE / "cells.py").read_text().splitlines()) <= 40
    shutil.copy(EXAMPLE / "cells.py", tmp_path / "cells.py")
    study = yaml.safe_load((EXAMPLE / "cells.yaml").read_text())
    assert study["budget"] == {"trials": 12, "epochs_per_trial": 30}
    study["budget"] = {"trials": 6, "epochs_per_trial": 10}
    (tmp_path / "cells.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cells", raising=False)
    run = CliRunner().invoke(main, ["run", "cells.yaml", "--json"])
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    assert set(document) == {
        "study",
        "trials",
        "rungs",
        "laws",
        "forecast",
        "plan",
        "outcome",
        "baselines",
    }
    assert document["study"]["state"] == "finished"
    trials = document["trials"]
    assert trials["total"] == 6 == sum(count for state, count in trials.items() if state != "total")
    assert document["forecast"]["global_batch_size"] == document["plan"]["global_batch_size"] == 64
    assert document["plan"]["epochs_to_target"] == document["forecast"]["epochs_to_target"]
    assert document["outcome"] is None and document["baselines"] == []
    assert "Traceback" not in run.stderr


def growing_study() -> StudySpec:
    return load_study(EXAMPLE / "growing.yaml")


def test_the_example_that_grows_trains_every_size_in_mup() -> None:
    """Each rung's own width, and the plan the full one; a rate of the base width is moved as muP has it."""
    spec = growing_study()
    assert [dict(point)["width"] for point in points(spec)] == [8, 16]
    given = {"optimizer": "adamw", "learning_rate": 0.01, "normalization_batch_size": 1}
    for point in points(spec):
        job = training_job(spec, TrainingSettings(**given, own=dict(point)), 8, seed=0)
        assert job.settings.scale == dict(point)
        training = begin_training(dataclasses.replace(job, epochs=1.0))
        assert isinstance(training, SynchronousTraining)
        hidden = training.model[2].weight
        growth = training.replica.growths[hidden]
        assert hidden.shape == (point[0][1],) * 2 and growth.fan_in == point[0][1] / 8
        assert training.advance().metric > 0.5
        training.close()
    plan = planned_job(spec, TrainingSettings(**given), 64, None)
    assert plan.settings.scale == {"width": 64}
    workload = check_workload(spec)
    assert isinstance(workload, Workload)
    assert workload.build_model(plan.settings)[2].weight.shape == (64, 64)
    assert TrainingSettings().scale == {}


def test_a_size_that_the_class_does_not_know_is_told() -> None:
    values = growing_study().to_dict()
    ladder, full = {**values["ladder"], "depth": [1]}, {**values["full_scale"], "depth": 2}
    text = yaml.safe_dump({**values, "ladder": ladder, "full_scale": full})
    spec = parse_study(text, folder=str(EXAMPLE))
    with pytest.raises(
        SpecError,
        match=r"'growing:Growing' does not read the setting 'depth'.*own_settings in its class",
    ):
        check_workload(spec)


@pytest.mark.slow
def test_the_example_that_grows_is_swept_and_forecast(one_ray, tmp_path, monkeypatch):
    for name in ("cells.py", "growing.py"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    study = yaml.safe_load((EXAMPLE / "growing.yaml").read_text())
    study["budget"] = {"trials": 12, "epochs_per_trial": 8}
    (tmp_path / "growing.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = CliRunner().invoke(main, ["run", "growing.yaml", "--json"])
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    assert document["trials"]["reached"] > 0
    assert document["forecast"]["full_scale"] == {"width": 64}
