"""A workload that shows sample images: one line after the outcome, and never at the expense of the outcome."""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

from search_spaces.settings import TrainingSettings
from storage.statements import sample_images as stored
from trainers import Target, TrainingJob
from trainers.__main__ import main
from trainers.errors import WorkloadError
from trainers.loop.sample_images import MAX_BYTES, check_sample_images, sample_images_of
from trainers.report import ReportFile, is_point, read_outcome, read_points, read_sample_images

WORKLOAD = """
import torch
from torch import nn
from torch.nn import functional as F
from trainers.workloads import Workload

class Shown(Workload):
    metrics = {"accuracy": True, "loss": False}
    train_samples, evaluation_samples = 32, 8

    def __init__(self, data):
        self.inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
        self.classes = (self.inputs[:, 0] > 0).long()

    def build_model(self, settings):
        return nn.Linear(4, 2)

    def training_batch(self, indices, epochs, seed):
        return self.inputs[indices], self.classes[indices]

    evaluation_batch = lambda self, indices: self.training_batch(indices, None, 0)

    def loss(self, model, batch, settings):
        return F.cross_entropy(model(batch[0]), batch[1])

    def score(self, model, batch):
        answers = model(batch[0])
        return {"accuracy": answers.argmax(1) == batch[1], "loss": F.cross_entropy(answers, batch[1], reduction="none")}

    def sample_images(self, model):
        assert not model.training
        BODY
"""
PANEL = {"name": "7", "fields": {"U": [[0, 255]]}, "labels": [[0, 1]], "prediction": [[1, 1]]}
GOOD = {
    "title": "shown",
    "references": {"majority class": 0.5},
    "classes": ["low", "high"],
    "panels": [PANEL],
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    def run(body: str, *options: str) -> int:
        (tmp_path / "shown_workload.py").write_text(WORKLOAD.replace("BODY", body))
        monkeypatch.delitem(sys.modules, "shown_workload", raising=False)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        TrainingJob(
            workload="shown_workload:Shown",
            data={},
            target=Target("accuracy", 2.0),
            global_batch_size=8,
            settings=TrainingSettings(learning_rate=0.1),
            seed=1,
            epochs=1,
            evaluations_per_epoch=2,
            search_path=str(tmp_path),
        ).save(tmp_path / "job.json")
        return main([str(tmp_path / "job.json"), "--report", str(tmp_path / "out.jsonl"), *options])

    return run


def test_sample_images_stand_behind_the_outcome(train, tmp_path):
    assert train(f"return {GOOD!r}") == 0
    report = tmp_path / "out.jsonl"
    assert read_sample_images(report) == GOOD
    assert len(read_points(report)) == 2 and read_outcome(report).state == "censored"
    assert [next(iter(json.loads(line))) for line in report.read_text().splitlines()][2:] == [
        "outcome",
        "sample_images",
    ]
    assert [is_point(line) for line in report.read_bytes().splitlines()] == [
        True,
        True,
        False,
        False,
    ]


def test_a_resumed_training_shows_its_model_once(train, tmp_path):
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint.pt"))
    assert train(f"return {GOOD!r}", *checkpoint) == train(f"return {GOOD!r}", *checkpoint) == 0
    assert (tmp_path / "out.jsonl").read_text().count('{"sample_images"') == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise RuntimeError('no room')", "no sample images: RuntimeError: no room"),
        (
            "return {'panels': [{'labels': [[0, 3]]}], 'classes': ['a']}",
            "WorkloadError: sample_images.panels[0].labels must",
        ),
        ("return None", ""),
    ],
)
def test_the_outcome_stands_without_sample_images(train, tmp_path, capsys, body, told):
    assert train(body) == 0
    assert read_outcome(tmp_path / "out.jsonl").state == "censored"
    assert read_sample_images(tmp_path / "out.jsonl") is None
    error = capsys.readouterr().err
    assert told in error and bool(told) == bool(error)


def test_a_report_reads_back_what_is_shown(tmp_path):
    report = ReportFile(tmp_path / "out.jsonl")
    report.start()
    assert read_sample_images(report.path) is None
    report.sample_images(GOOD)
    assert read_sample_images(report.path) == GOOD and read_points(report.path) == []


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "sample images must be a mapping, but got list"),
        ({"classes": "low"}, "sample_images.classes must be a list of names, but got 'low'"),
        (
            {"references": {"majority": "half"}},
            "sample_images.references must map names to numbers",
        ),
        ({"references": {"majority": float("nan")}}, "must hold plain JSON values, but"),
        ({"panels": PANEL}, "sample_images.panels must be a list"),
        (
            {**GOOD, "panels": [PANEL, {**PANEL, "fields": {"U": [[0, 256]]}}]},
            r"sample_images.panels\[1\].fields\['U'\] must be equally long rows of numbers .*, but got \[\[0, 256\]\]",
        ),
        ({**GOOD, "panels": [{**PANEL, "fields": {"U": [[0, 1], [2]]}}]}, "equally long rows"),
        (
            {**GOOD, "panels": [{**PANEL, "prediction": [[0, 2]]}]},
            "prediction must be .* labels 0 to 1, one for each",
        ),
        ({**GOOD, "panels": [{**PANEL, "labels": []}]}, "labels must be equally long rows"),
        ({"title": object()}, "must hold plain JSON values"),
        (
            {"title": "x" * MAX_BYTES},
            f"at most {MAX_BYTES:,} bytes as JSON, but got .*; show fewer panels",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(images, message):
    with pytest.raises(WorkloadError, match=message):
        check_sample_images(images)


def test_what_is_reported_can_be_stored():
    assert check_sample_images(GOOD) == GOOD and check_sample_images({}) == {}
    assert MAX_BYTES == stored.MAX_BYTES


def test_reports_and_workloads_of_earlier_releases_are_read(tmp_path):
    report = tmp_path / "old.jsonl"
    report.write_text(json.dumps({"exhibit": GOOD}) + "\n")
    assert read_sample_images(report) == GOOD and read_points(report) == []
    shows = SimpleNamespace(exhibit=lambda model: {"title": model.title})
    model = SimpleNamespace(title="old", eval=lambda: None)
    replica = SimpleNamespace(workload=shows, model=model, computing=contextlib.nullcontext())
    assert sample_images_of(replica) == {"title": "old"}
