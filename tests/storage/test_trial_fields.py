"""A figure of a trial added in one place appears in the database, REST, client, page, tables and exports."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.figures import END_FIGURES, TRIAL_FIELDS, TrialFigures
from storage.records import Trial, TrialResult
from storage.schema.tables import trials

ROOT = Path(__file__).parent.parent.parent
LAST = "    best_metric: float | None"
ADDED = (
    '    peak_memory: float | None = _came_of_it("Peak memory", unit="bytes", least=0, most=1e18)\n'
)
PROGRAM = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from pyarrow import parquet
import api_server
from hpo.cli.commands.web import dashboard_routers
from hpo.cli.main import main
from hpo.client.client import Client
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, TrialResult, TrialState

here, found = Path(sys.argv[1]), {}
plain = api_server.create_app
api_server.create_app = lambda config: plain(config, dashboard_routers())
with api_server.served(here) as api:
    made = api.submit()
    assert made.status_code in (200, 201, 202), made.text
    store = api.store
    study = store.study("bowl")
    new = NewTrial(global_batch_size=16, seed=1, settings=TrainingSettings().to_dict())
    (trial,) = store.add_trials(study.id, [new])
    store.start_trials([trial.id])
    store.finish_trial(trial.id, TrialResult(state=TrialState.CENSORED, epochs=2.0, peak_memory=2.5e9))
    found["rest"] = api.call("GET", "/studies/bowl/trials/0").json()["peak_memory"]
    described = api.app.openapi()["components"]["schemas"]["TrialAnswer"]
    found["described"] = described["properties"]["peak_memory"]["description"]
    (seen,) = Client(str(api.client.base_url), token=api.token("ada")).study("bowl").trials()
    found["client"] = seen.peak_memory
    page = api.call("GET", "/studies/bowl/columns").json()
    found["page"] = [page["figures"]["peak_memory"], page["columns"]["peak_memory"]]
    try:
        store.finish_trial(trial.id, TrialResult(state=TrialState.CENSORED, peak_memory=-1.0))
    except Exception as error:
        found["range"] = str(error)

def call(*words):
    done = CliRunner().invoke(main, [*words, "--storage", f"sqlite:///{here}/hpo.db"])
    assert done.exit_code == 0, done.output
    return done.stdout

found["csv"] = [line.split(",") for line in call("trials", "bowl", "--format", "csv").splitlines()]
call("export", "parquet", "bowl", "--to", str(here / "out"))
table = parquet.read_table(here / "out" / "trials.parquet")
unit = table.schema.field("peak_memory").metadata[b"unit"].decode()
found["parquet"] = [table["peak_memory"].to_pylist(), unit]
print(json.dumps(found))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_figure_is_added_in_one_place(tmp_path: Path) -> None:
    house = tmp_path / "house"
    for package in ("hpo", "storage", "search_spaces", "trainers"):
        shutil.copytree(
            ROOT / package, house / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "tests" / "service" / "api_server.py", house)
    file = house / "storage" / "figures.py"
    text = file.read_text()
    assert text.count(LAST) == 1
    file.write_text(text.replace(LAST, ADDED + LAST))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rest"] == found["client"] == 2.5e9
    assert found["described"] == "Peak memory, in bytes."
    assert found["page"] == ["Peak memory", [2.5e9]]
    assert "peak_memory must be a number from 0 to 1e+18, but got -1.0" in found["range"]
    heads, row = found["csv"]
    assert float(row[heads.index("peak_memory")]) == 2.5e9
    assert found["parquet"] == [[2.5e9], "bytes"]


def test_results_and_trials_have_every_figure() -> None:
    names = {each.name for each in TRIAL_FIELDS}
    assert names == {each.name for each in dataclasses.fields(TrialFigures)}
    for record in (Trial, TrialResult):
        assert names <= {each.name for each in dataclasses.fields(record)}
    assert names <= {column.name for column in trials.c}
    assert {each.name for each in END_FIGURES} - names == {"samples"}
    assert all(each.title for each in TRIAL_FIELDS)
