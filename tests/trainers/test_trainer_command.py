import json

import pytest

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.__main__ import main
from trainers.report import read_outcome, read_points

pytestmark = pytest.mark.processes


@pytest.fixture
def files(tmp_path):
    job = TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        global_batch_size=64,
        settings=TrainingSettings(learning_rate=0.1),
        seed=1,
        epochs=0.5,
    )
    job.save(tmp_path / "job.json")
    return tmp_path


def run(files, *options):
    return main([str(files / "job.json"), "--report", str(files / "report.jsonl"), *options])


def test_a_training_reports_points_and_outcome(files):
    assert run(files) == 0
    assert [point.step for point in read_points(files / "report.jsonl")] == [6, 12]
    assert read_outcome(files / "report.jsonl").state == "censored"


def test_a_resumed_training_reports_each_point_once(files):
    checkpoint = ("--checkpoint", str(files / "checkpoint.pt"))
    assert run(files, *checkpoint) == 0
    points, outcome = read_points(files / "report.jsonl"), read_outcome(files / "report.jsonl")
    assert run(files, *checkpoint) == 0
    assert read_points(files / "report.jsonl") == points
    assert read_outcome(files / "report.jsonl") == outcome


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "resnets"}, "there is no workload 'resnets'; did you mean 'resnet'"),
        (
            {"data": {"source": "image_folder", "path": "/nowhere"}},
            "the data folder /nowhere does not exist",
        ),
        ({"global_batch_size": 24}, "normalization_batch_size must divide the local batch size"),
        ({"sed": 1}, "a job has no key 'sed'; did you mean 'seed'"),
        (
            {"target": {"metric": "iou", "threshold": 0.8}},
            "the workload 'resnet' has no metric 'iou'",
        ),
    ],
)
def test_a_wrong_job_is_one_message_and_exit_status_2(files, capsys, change, message):
    values = json.loads((files / "job.json").read_text())
    (files / "job.json").write_text(json.dumps({**values, **change}))
    assert run(files) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_an_unforeseen_failure_is_exit_status_1(files, capsys):
    assert run(files, "--threads", "0") == 1
    assert "Traceback" in capsys.readouterr().err
