"""Sample images of a launched plan: stored with the outcome, and refused if faulty."""

import json

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.errors import LaunchError
from storage.store import Store

pytestmark = [pytest.mark.fit, pytest.mark.processes]

SHOWN = """
    def sample_images(self, model):
        right = (model(self.inputs[self.test]).argmax(1) == self.classes[self.test]).int()
        return {"title": "cells", "references": {"majority class": 0.63}, "classes": ["wrong", "right"],
                "panels": [{"name": "held out", "prediction": [right.tolist()]}]}
"""


@pytest.mark.slow
def test_a_launch_keeps_what_the_model_is_shown_by(study):
    path = study.folder / "cells.py"
    path.write_text(path.read_text() + SHOWN)
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=2), study.folder / "plan")
    hpo.launch(plan, backend="torch", storage=study.storage, directory=study.folder / "runs")
    with Store.open(study.storage) as store:
        (shown,) = store.sample_images(plan.id).values()
    assert shown["references"] == {"majority class": 0.63}
    assert (
        sum(shown["panels"][0]["prediction"][0]) / 143 >= 0.98
    )  # the target was reached by this very model
    report = study.folder / "runs" / f"seed-{plan.job.seed}" / "outcome.jsonl"
    with pytest.raises(LaunchError, match="already stored as outcome 1"):
        hpo.record(plan, report, study.storage)
    told = CliRunner().invoke(main, ["show", "cells", "--json"])
    runs = hpo.read_study("cells", study.storage).runs
    assert [run.references(run.outcomes[0]) for run in runs] == [{"majority class": 0.63}]
    assert told.exit_code == 0
    assert "majority class 0.63" in CliRunner().invoke(main, ["show", "cells"]).stdout


def test_a_report_with_faulty_sample_images_is_refused(study):
    forecast = hpo.forecast(study.result, 64)
    plan = hpo.store_plan(forecast, hpo.make_plan(forecast, workers=1), study.folder / "plan")
    outcome = {
        "state": "censored",
        "epochs_to_target": None,
        "epochs": 1.0,
        "steps": 2,
        "seconds": 1.0,
        "best_metric": 0.5,
        "final_metric": 0.5,
        "reason": "",
    }
    report = study.folder / "outcome.jsonl"
    report.write_text(
        json.dumps({"outcome": outcome})
        + "\n"
        + json.dumps({"sample_images": {"panels": 3}})
        + "\n"
    )
    with pytest.raises(
        LaunchError, match=r"cannot read .*sample_images\.panels must be a list, but got 3"
    ):
        hpo.record(plan, report, study.storage)
    with Store.open(study.storage) as store:
        assert store.outcomes(plan.id) == []
