"""A workload of the user's own, outside the project, through the whole of `hpo run`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_workload"


@pytest.mark.slow
def test_the_example_runs_and_prints_one_json_document(tmp_path):
    assert len((EXAMPLE / "cells.py").read_text().splitlines()) <= 40
    for name in ("cells.py", "cells.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    run = subprocess.run(
        [Path(sys.executable).parent / "hpo", "run", tmp_path / "cells.yaml", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
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
    assert (
        trials["total"] == 12 == sum(count for state, count in trials.items() if state != "total")
    )
    assert document["forecast"]["global_batch_size"] == document["plan"]["global_batch_size"] == 64
    assert document["plan"]["epochs_to_target"] == document["forecast"]["epochs_to_target"]
    assert document["outcome"] is None and document["baselines"] == []
    assert "Traceback" not in run.stderr
