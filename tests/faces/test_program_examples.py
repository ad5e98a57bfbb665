"""The example programs, tuned, forecast, planned, launched and scored as docs/guides/programs.md has it."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.runs.repository import open_store

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "programs"


def hpo_command(folder, *words):
    """What a command of `hpo` prints, as JSON; it may leave with 1, which says that a training missed its target."""
    done = CliRunner().invoke(
        main, [*map(str, words), "--json", "--storage", f"sqlite:///{folder}/hpo.db"]
    )
    assert done.exit_code in (0, 1) and done.stdout, done.output
    return json.loads(done.stdout)


def needing(library, *values):
    return pytest.param(
        *values,
        id=values[0],
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library) is None,
            reason=f"{library} is not installed: pip install 'largebatch[frameworks]'",
        ),
    )


@pytest.mark.parametrize(
    ("name", "trials", "workers"),
    [
        needing("torch", "ddp", 1, 2),
        needing("torch", "fsdp", 1, 2),
        needing("accelerate", "with_accelerate", 1, 2),
        needing("lightning", "with_lightning", 1, 1),
        needing("transformers", "with_trainer", 1, 1),
        needing("numpy", "prints", 3, 1),
    ],
)
def test_an_example_is_tuned_forecast_planned_launched_and_scored(
    tmp_path, one_ray, name, trials, workers
):
    """As it is shipped, but for a smaller budget, and no more rungs than trials.

    Every training of it starts processes that import its library, which takes longer than the training.
    """
    shutil.copytree(EXAMPLES, tmp_path / "programs")
    file = tmp_path / "programs" / f"{name}.yaml"
    study = yaml.safe_load(file.read_text())
    assert study["budget"]["trials"] > trials
    study["budget"]["trials"] = trials
    study["ladder"] = study["ladder"][:trials]  # a rung has a trial at least
    file.write_text(yaml.safe_dump(study))

    document = hpo_command(tmp_path, "run", file, "--folder", tmp_path / "files")
    assert document["study"]["state"] == "finished"
    assert document["trials"]["total"] == trials
    assert document["trials"]["failed"] == 0 < document["trials"]["reached"]
    full, plan = study["full_scale"], document["plan"]
    batch = full["global_batch_size"]
    assert document["forecast"]["global_batch_size"] == plan["global_batch_size"] == batch
    assert plan["workers"] == full["workers"]
    check_trials(hpo.read_study(name, f"sqlite:///{tmp_path}/hpo.db"), tmp_path / "files", workers)

    (launched,) = hpo_command(tmp_path, "launch", plan["id"], "--folder", tmp_path / "plan")
    assert launched["state"] in ("reached", "censored") and launched["workers"] == full["workers"]
    (row,) = hpo_command(tmp_path, "calibration")
    assert row["plan_id"] == plan["id"] and row["runs"] == 1


def check_trials(result, files, workers):
    """Each was trained by so many workers and reported every epoch."""
    with open_store(result.storage) as store:
        curves = {trial.number: store.points(trial.id) for trial in result.trials}
    for trial in result.trials:
        folder = files / "trials" / str(trial.study_id) / str(trial.number)
        assert json.loads((folder / "trial.json").read_text())["workers"] == workers
        epochs = [point.epochs for point in curves[trial.number]]
        assert epochs == pytest.approx([epoch + 1 for epoch in range(len(epochs))])


def test_the_example_with_two_workers_has_six_lines_for_hpo():
    lines = (EXAMPLES / "ddp.py").read_text().splitlines()
    marked = [int(number) for line in lines for number in re.findall(r"# (\d)", line)]
    assert marked == [1, 2, 3, 4, 5, 6]
    assert not any("hpo" in line for line in lines[3:] if "# " not in line)


def test_torchtitan_s_command_line_is_a_study_and_what_it_prints_is_read():
    done = CliRunner().invoke(
        main, ["study", "check", str(EXAMPLES / "torchtitan.yaml"), "--no-timing", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "torchtitan"
    pattern = re.compile(hpo.load_study(EXAMPLES / "torchtitan.yaml").program.report.pattern)
    found = pattern.search(  # torchtitan/components/metrics.py, without colours
        "[titan] 2025-09-11 14:08:37,123 - root - INFO - validate step: 100  loss:  3.1416  "
        "memory: 40.12GiB(50.71%)  tps: 12,345"
    )
    assert (found["steps"], found["loss"]) == ("100", "3.1416")
    assert not pattern.search("step: 100  loss:  3.1416  grad_norm:  1.0000  memory: 40.12GiB")


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
