"""A workload of the user's own, outside the project, through the whole of `hpo run`."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hpo.cli.main import main

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
