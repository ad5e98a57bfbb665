"""The example programs through the whole of `hpo run`, as docs/guides/programs.md has it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hpo

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "programs"


@pytest.mark.parametrize("name", ["ddp", "prints"])
def test_an_example_is_swept_forecast_and_planned(tmp_path, name):
    run = subprocess.run(
        [
            Path(sys.executable).parent / "hpo",
            *("run", EXAMPLES / f"{name}.yaml", "--json"),
            *("--storage", tmp_path / "hpo.db", "--folder", tmp_path / "files"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    study = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    assert document["study"]["state"] == "finished"
    assert document["trials"]["total"] == study["budget"]["trials"]
    assert document["trials"]["failed"] == 0 < document["trials"]["reached"]
    batch = study["full_scale"]["global_batch_size"]
    assert (
        document["forecast"]["global_batch_size"] == document["plan"]["global_batch_size"] == batch
    )
    workers = document["plan"]["workers"]
    assert workers == study["full_scale"]["workers"]
    result = hpo.read_study(name, str(tmp_path / "hpo.db"))
    (launched,) = hpo.launch_here(result.plan.plan, directory=tmp_path / "plan")
    assert launched.outcome.state in ("reached", "censored") and launched.workers == workers
    assert launched.samples_per_second > 0


def test_the_example_with_two_workers_has_six_lines_for_hpo():
    lines = (EXAMPLES / "ddp.py").read_text().splitlines()
    marked = [int(number) for line in lines for number in re.findall(r"# (\d)", line)]
    assert marked == [1, 2, 3, 4, 5, 6]
    assert not any("hpo" in line for line in lines[3:] if "# " not in line)


def test_the_study_of_the_page_is_one():
    text = (ROOT / "docs" / "guides" / "programs.md").read_text()
    study = next(
        block
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        if "name: mine" in block
    )
    indented = "\n".join(line.removeprefix("   ") for line in study.splitlines())
    spec = hpo.parse_study(indented)
    assert spec.search.own_names == ("drop_path",) and spec.resources.workers == 4
