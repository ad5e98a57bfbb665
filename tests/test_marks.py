"""The marks of cost, and the order of tests."""

import ast
from pathlib import Path

import pytest

from tests.conftest import (
    COSTLY,
    COSTLY_IF_SLOW,
    MARKS,
    MOST_SECONDS,
    dealt,
    excluded,
    fault_of_cost,
    marks_of,
    processor_seconds,
)

HERE = Path(__file__).parent


def test_a_test_that_takes_long_needs_a_mark():
    assert fault_of_cost(MOST_SECONDS, []) == ""
    assert "took 30.5 s" in fault_of_cost(30.5, ["parametrize"])
    assert "took 30.5 s" in fault_of_cost(30.5, ["medium"])
    others = set(MARKS) - {"medium"}
    assert all(fault_of_cost(100.0, ["parametrize", mark]) == "" for mark in others)


def test_the_time_of_children_counts():
    import subprocess
    import sys

    before = processor_seconds()
    program = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert processor_seconds() - before >= 0.25


@pytest.mark.parametrize(
    ("file", "expression", "left_out"),
    [
        ("tuning/test_sweeps.py", "not (slow or fit)", True),
        ("tuning/test_sweeps.py", "not (slow or browser)", False),
        ("tuning/test_sweeps.py", "", False),
        ("tuning/test_sweeps.py", "fit", False),
        ("tuning/test_sweeps.py", "not (slow or fit) or postgres", False),
        ("service/test_openapi.py", "not (slow or fit)", False),  # one of its tests alone is slow
        ("../benchmarks/fleet.py", "not (slow)", False),
        ("trainers/test_compiled.py", "not slow", True),
        ("service/test_openapi.py", "not slow", False),
        ("service/test_openapi.py", "slow", False),
        ("study/test_study.py", "slow", True),
        ("service/api_server.py", "slow", False),
    ],
)
def test_only_files_that_are_marked_as_a_whole_are_not_read(file, expression, left_out):
    assert excluded((HERE / file).resolve(), expression) is left_out


@pytest.mark.parametrize("costs", [COSTLY, COSTLY_IF_SLOW], ids=["test", "slow"])
@pytest.mark.parametrize("processes", [2, 3, 4, 5])
def test_every_part_begins_with_its_share_of_the_costly_files(processes, costs):
    files = [place for places in costs for place in places]
    assert [place for place in files if not (HERE / place).exists()] == []
    tests = [f"tests/a.py::test_{number}" for number in range(1000)]
    tests += [f"tests/{place}::test_{number}" for place in files for number in range(5)]
    order = dealt(tests, processes, costs)
    assert sorted(order) == list(range(len(tests)))
    cost = {place: seconds for places, seconds in costs.items() for place in places[:1]}
    left, shares = len(tests), []
    for number in range(processes):
        size = left // (processes - number)
        part, order, left = order[:size], order[size:], left - size
        of_costly = [
            tests[each].split("::")[0].removeprefix("tests/") for each in part if each >= 1000
        ]
        assert all(each >= 1000 for each in part[: len(of_costly)])
        shares.append(sum(cost.get(place, 0) for place in dict.fromkeys(of_costly)))
    assert max(shares) - min(shares) <= 60 or max(shares) == max(cost.values())


def test_every_mark_is_explained(pytestconfig):
    explained = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(MARKS) <= explained


def test_a_mark_of_a_whole_file_is_found_without_an_import():
    for file in HERE.glob("**/test_*.py"):
        named = {
            node.attr
            for statement in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "pytestmark"
            for node in ast.walk(statement.value)
            if isinstance(node, ast.Attribute) and node.attr in MARKS
        }
        assert named == marks_of(file) & set(MARKS), f"{file}: write pytestmark in one line"
