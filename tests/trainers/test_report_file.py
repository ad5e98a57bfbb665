import json
import math

import pytest

from trainers import ConvergencePoint, TrainingOutcome
from trainers.report import ReportFile, read_outcome, read_points


def point(step, **changes):
    values = {
        "step": step,
        "samples": 64 * step,
        "epochs": step / 20,
        "seconds": 0.5,
        "train_loss": 1.25,
        "loss": 1.0,
        "metric": 0.5,
        "learning_rate": 0.1,
        "global_batch_size": 64,
    }
    return ConvergencePoint(**{**values, **changes})


OUTCOME = TrainingOutcome("censored", None, 1.0, 20, 2.0, 0.5, 0.25, "the budget ended")


def test_points_and_outcome_survive_the_file(tmp_path):
    report = ReportFile(tmp_path / "report.jsonl")
    report.start()
    report.point(point(5))
    assert read_outcome(report.path) is None
    report.point(point(10, gradient_noise_scale=300.0))
    report.outcome(OUTCOME)
    assert read_points(report.path) == [point(5), point(10, gradient_noise_scale=300.0)]
    assert read_outcome(report.path) == OUTCOME


def test_what_is_not_finite_is_null_in_json(tmp_path):
    line = point(5, loss=math.nan, train_loss=math.inf).to_json()
    values = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert values["loss"] is None and values["gradient_noise_scale"] is None
    read = ConvergencePoint.from_json(line)
    assert (
        math.isnan(read.loss) and math.isnan(read.train_loss) and read.gradient_noise_scale is None
    )
    assert math.isnan(
        TrainingOutcome.from_dict({**OUTCOME.to_dict(), "best_metric": None}).best_metric
    )


def test_a_resumed_report_keeps_the_points_of_the_checkpoint_alone(tmp_path):
    report = ReportFile(tmp_path / "report.jsonl")
    report.start()
    for step in (5, 10, 15):
        report.point(point(step))
    report.outcome(OUTCOME)
    report.start(last_step=10)
    assert read_points(report.path) == [point(5), point(10)]
    assert read_outcome(report.path) is None
    report.start()
    assert read_points(report.path) == []


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "report.jsonl"
    path.write_text(point(5).to_json() + "\n" + point(10).to_json()[:40])
    assert read_points(path) == [point(5)]
    ReportFile(path).start(last_step=5)
    ReportFile(path).point(point(10))
    assert read_points(path) == [point(5), point(10)]
