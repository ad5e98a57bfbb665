"""JSON without NaN, from a single writer."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from hpo.cli.commands.options import print_json
from hpo.service.reply import json_reply
from trainers.json_text import json_bytes, json_text
from trainers.report import ConvergencePoint, ReportFile, TrainingOutcome, read_outcome

ROOT = Path(__file__).parent.parent.parent
OWN_TEXT = {
    "hpo/cli/commands/init.py": "a name is quoted in YAML",
    "hpo/study/spec.py": "a name is quoted in YAML",
    "hpo/callbacks/reporting.py": "programs import it alone, and what is not finite becomes text there",
    "hpo/service/checking.py": "question and answer of two processes of the service",
    "hpo/cli/own_arguments.py": "the arguments of a command, which it hands to itself",
    "hpo/client/calls.py": "a key is made of it",
    "hpo/service/logs.py": "a log line holds anything",
    "hpo/service/reference.py": "a page shows it",
    "trainers/loop/sample_images.py": "NaN is refused there, and the size counted",
    "trainers/staging/local_folder.py": "a journal of names and sizes",
    "trainers/staging/nodes.py": "names and sizes, sent between nodes",
    "trainers/staging/__main__.py": "seconds and bytes, counted",
    "trainers/workloads/program/guard.py": "imports nothing, and writes text and whole numbers",
    "trainers/workloads/program/process.py": "the command and folders of a program",
    "trainers/workloads/segmentation/data.py": "a key is made of it",
    "trainers/workloads/segmentation/generate.py": "a key is made of it",
}
"""What else may write JSON, and why."""


@dataclasses.dataclass(frozen=True)
class Measured:
    loss: float
    steps: tuple[float, ...]


def refuse(constant):
    raise AssertionError(f"JSON has no {constant}")


def strictly(text):
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_what_is_not_finite_is_null_wherever_it_stands(number):
    document = {
        "a": number,
        "b": [number, (1.5, number)],
        "c": {"d": Measured(number, (number, 2.0))},
    }
    assert strictly(json_text(document)) == {
        "a": None,
        "b": [None, [1.5, None]],
        "c": {"d": {"loss": None, "steps": [None, 2.0]}},
    }
    assert json_bytes(document) == json_text(document).encode()


def test_finite_numbers_come_back_as_they_were():
    numbers = [
        0.1,
        1e-300,
        1.7976931348623157e308,
        -0.0,
        1e16,
        123456789.123456789,
        2**63,
        np.float64(1 / 3),
    ]
    assert strictly(json_text(numbers, indent=2)) == numbers


def test_text_that_utf_8_cannot_hold_is_written():
    assert strictly(json_text({"name": "half \ud800", "number": math.nan})) == {
        "name": "half \\ud800",
        "number": None,
    }


def test_command_line_service_and_reports_write_none(capsys, tmp_path):
    document = {"epochs": math.inf, "rows": [math.nan]}
    print_json(document)
    assert (
        strictly(capsys.readouterr().out)
        == strictly(json_reply(document).body)
        == {"epochs": None, "rows": [None]}
    )
    report = ReportFile(tmp_path / "report.jsonl")
    report.point(ConvergencePoint(1, 2, 3.0, 4.0, math.nan, math.inf, 0.5, 0.1, 2))
    report.outcome(
        TrainingOutcome(
            "diverged", None, 1.0, 1, 1.0, math.nan, -math.inf, "the loss is not finite"
        )
    )
    for line in report.path.read_text().splitlines():
        strictly(line)
    outcome = read_outcome(report.path)
    assert (
        outcome is not None and math.isnan(outcome.best_metric) and math.isnan(outcome.final_metric)
    )


def test_nothing_else_writes_json():
    """The storage stands alone: it refuses NaN in what it keeps. Programs handed to another process print their own."""
    found = set()
    for path in (*ROOT.glob("hpo/**/*.py"), *ROOT.glob("trainers/**/*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if any(
            "json.dump" in line and "print(json.dumps" not in line.replace('"', "")
            for line in lines
        ):
            found.add(path.relative_to(ROOT).as_posix())
    assert found <= set(OWN_TEXT), found - set(OWN_TEXT)
