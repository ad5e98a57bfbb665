"""The sweeper of Hydra applications: the real Hydra runs the application of its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpo
from storage.store import Store

pytest.importorskip("hydra")

from hydra.errors import HydraException

from hydra_plugins.largebatch_sweeper.study_file import best_overrides, make_study

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "hydra.md"
STUDY: dict[str, Any] = {
    "name": "mine",
    "train_samples": 500,
    "metrics": {"loss": False},
    "target": {"metric": "loss", "at_most": 0.1},
    "ladder": [16, 32],
    "budget": {"trials": 4, "epochs_per_trial": 10},
}


def study_of(*overrides: str, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"batch": "batch_size", "seed": None, "names": {}, **changes}
    params = options.pop("params", {})
    given = options.pop("study", STUDY)
    return make_study(given, params, overrides, ["python", "train.py"], **options)


def refused(*overrides: str, **changes: Any) -> str:
    with pytest.raises(HydraException) as caught:
        study_of(*overrides, **changes)
    return str(caught.value)


def test_sweeps_become_a_search_and_the_rest_the_command():
    made = study_of(
        "optimizer.lr=tag(log,interval(0.01,1.0))",
        "momentum=tag(scaled,interval(0.5,0.95))",
        "model=choice(small,wide)",
        "model.blocks=range(1,4)",
        "warmup_epochs=tag(shared,interval(0,5))",
        "data.path=/data/images",
        names={"optimizer.lr": "learning_rate"},
        seed="seed",
    )
    assert made["search"] == {
        "learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"},
        "momentum": {"uniform": [0.5, 0.95], "role": "scaled"},
        "model": {"choice": ["small", "wide"]},
        "model_blocks": {"choice": [1, 2, 3]},
        "warmup_epochs": {"uniform": [0, 5]},
    }
    assert made["program"] == {
        "command": [
            "python",
            "train.py",
            "optimizer.lr={learning_rate}",
            "momentum={momentum}",
            "model={model}",
            "model.blocks={model_blocks}",
            "warmup_epochs={warmup_epochs}",
            "data.path=/data/images",
            "batch_size={global_batch_size}",
            "seed={seed}",
            "hydra.run.dir={output_folder}",
        ],
        "train_samples": 500,
        "report": {"metrics": {"loss": False}},
    }
    assert hpo.parse_study(yaml.safe_dump(made)).ladder == (16, 32)


def test_the_command_line_goes_before_the_configuration():
    made = study_of(
        "learning_rate=interval(0.1,0.2)",
        params={"learning_rate": "tag(log,interval(0.01,1.0))", "momentum": "interval(0.5,0.9)"},
    )
    assert made["search"]["learning_rate"] == {"uniform": [0.1, 0.2], "role": "scaled"}
    assert made["search"]["momentum"] == {"uniform": [0.5, 0.9]}


def test_the_recommended_run_is_told_as_overrides():
    command = study_of("optimizer.learning_rate=interval(0.01,1.0)")["program"]["command"]
    found = best_overrides({"learning_rate": 0.25, "momentum": 0.9}, command, 4096)
    assert found == ["optimizer.learning_rate=0.25", "batch_size=4096"]


@pytest.mark.parametrize(
    ("overrides", "changes", "told"),
    [
        (["batch_size=16,32"], {}, "batch_size takes the batch sizes of the ladder"),
        (["learning_rate=glob(*)"], {}, "a search needs interval(...)"),
        (
            ["a.learning_rate=interval(0,1)", "b.learning_rate=interval(0,1)"],
            {},
            "are both the setting learning_rate",
        ),
        (
            [],
            {"study": {name: STUDY[name] for name in STUDY if name != "ladder"}},
            "hydra.sweeper.study must hold ladder",
        ),
    ],
)
def test_what_cannot_be_a_study_is_one_error(
    overrides: list[str], changes: dict[str, Any], told: str
):
    assert told in refused(*overrides, **changes)


@pytest.mark.slow
def test_the_application_of_the_page_sweeps_forecasts_and_plans(tmp_path: Path):
    text = PAGE.read_text("utf-8")
    for block in re.findall(r"```\w+\n# (\S+)\n(.*?)```", text, re.S):
        name, content = block
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (command,) = re.findall(r"^python (train\.py -m .*)$", text, re.M)
    words = [word.strip("'") for word in re.split(r" (?='|-m|train)", command)]
    words = [each for word in words for each in ([word] if "=" in word else word.split())]

    def multirun() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, *words, f"hydra.sweep.dir={tmp_path / 'out'}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HYDRA_FULL_ERROR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = yaml.safe_load(
            (tmp_path / "out" / "optimization_results.yaml").read_text()
        )
        return found

    found = multirun()
    assert found["forecast"]["global_batch_size"] == 1024
    assert [each.partition("=")[0] for each in found["best_overrides"]] == [
        "optimizer.learning_rate",
        "optimizer.momentum",
        "batch_size",
    ]
    assert found["best_overrides"][-1] == "batch_size=1024"
    script = (tmp_path / "out" / "plan" / "launch.sh").read_text()
    job = (tmp_path / "out" / "plan" / "job.json").read_text()
    assert "trainers" in script and "optimizer.learning_rate={learning_rate}" in job
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        trials = store.trials(store.study("mine").id, purpose="sweep")
    assert len(trials) == 12
    assert multirun()["forecast"] == found["forecast"]  # nothing is trained again
