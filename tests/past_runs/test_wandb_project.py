"""Runs of a Weights & Biases project, from an object that answers like its API."""

import math
import sys
from types import SimpleNamespace

import pytest

from hpo.errors import EvidenceError
from hpo.past_runs.wandb_project import read_project, read_wandb


def a_run(name, state="finished", history=()):
    return SimpleNamespace(
        path=["me", "images", name],
        state=state,
        config={"optim": {"lr": 0.1, "name": "sgd"}, "batch": 256, "layers": [1, 2]},
        summary={"top1": 0.7, "_runtime": 12.5, "_step": 20, "picture": {"_type": "image-file"}},
        scan_history=lambda: iter(history),
    )


HISTORY = [
    {"_step": 10, "_runtime": 3.0, "top1": 0.5, "loss": 2.0},
    {"_step": 20, "_runtime": 6.0, "top1": 0.7, "loss": "NaN", "text": "word"},
]


class Api:
    def __init__(self, runs):
        self._runs = runs

    def runs(self, name):
        assert name == "me/images"
        if isinstance(self._runs, Exception):
            raise self._runs
        return self._runs


def test_config_summary_and_whole_history():
    first, second = read_project(
        "me/images", Api([a_run("a", history=HISTORY), a_run("b", "Crashed")])
    )
    assert first.label == "wandb me/images/a" and second.status == "crashed"
    assert first.has_id and second.has_id
    assert first.values["optim.lr"] == 0.1 and first.values["optim.name"] == "sgd"
    assert first.values["batch"] == 256 and first.values["top1"] == 0.7
    assert not {"_runtime", "layers"} & set(first.values)
    assert [(r.step, r.value, r.seconds) for r in first.curves["top1"]] == [
        (10, 0.5, 3.0),
        (20, 0.7, 6.0),
    ]
    assert math.isnan(first.curves["loss"][1].value) and "text" not in first.curves
    assert first.seconds == 12.5 and second.curves == {}


def through(monkeypatch, answer):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=lambda: Api(answer)))


def test_a_source_that_is_no_file_is_a_project(monkeypatch, tmp_path):
    through(monkeypatch, [a_run("a")])
    monkeypatch.chdir(tmp_path)
    assert [run.label for run in read_wandb("me/images")] == ["wandb me/images/a"]
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "images").write_text("Name,State,lr\nx,finished,0.1\n")
    assert [run.label for run in read_wandb("me/images")] == ["wandb x"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [([], "has no runs"), (OSError("no route to host\nmore"), "no route to host; check")],
)
def test_a_project_that_gives_nothing(monkeypatch, answer, said):
    through(monkeypatch, answer)
    with pytest.raises(EvidenceError, match=said):
        read_wandb("me/images")


def test_a_chart_and_a_missing_library(monkeypatch, tmp_path):
    with pytest.raises(EvidenceError, match="leave --chart out"):
        read_wandb("me/images", [tmp_path / "chart.csv"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EvidenceError, match=r"largebatch\[wandb\]"):
        read_wandb("me/images")
