"""The marks of cost: what they are for, and that what they name is there."""

from pathlib import Path

import pytest

from tests.conftest import (
    COSTLY,
    LISTED,
    MARKS,
    MOST_SECONDS,
    dealt,
    excluded,
    fault_of_cost,
    processor_seconds,
)

HERE = Path(__file__).parent


def test_a_test_that_takes_long_needs_a_mark():
    assert fault_of_cost(MOST_SECONDS, []) == ""
    assert "took 10.5 s" in fault_of_cost(10.5, ["parametrize"])
    assert all(fault_of_cost(100.0, ["parametrize", mark]) == "" for mark in MARKS)


def test_the_time_of_children_counts():
    import subprocess
    import sys

    before = processor_seconds()
    program = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert processor_seconds() - before >= 0.25


@pytest.mark.parametrize(("mark", "places"), LISTED.items())
def test_what_is_listed_is_there(mark, places):
    """A test that was renamed would lose its mark in silence."""
    assert len(set(places)) == len(places)
    for place in places:
        file, _, name = place.partition("::")
        text = (HERE / file).read_text(encoding="utf-8")
        *classes, test = name.split("[")[0].split("::")
        if classes:  # a class may have its tests from a contract beside it
            assert f"class {classes[0]}(" in text, place
            text = "".join(each.read_text("utf-8") for each in (HERE / file).parent.glob("*.py"))
        assert not name or f"def {test}(" in text, place


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
    ],
)
def test_only_files_that_are_listed_as_a_whole_are_not_read(file, expression, left_out):
    assert excluded((HERE / file).resolve(), expression) is left_out


@pytest.mark.parametrize("processes", [2, 3, 4, 5])
def test_every_part_begins_with_its_share_of_the_costly_files(processes):
    files = [place for places in COSTLY for place in places]
    assert [place for place in files if not (HERE / place).exists()] == []
    tests = [f"tests/a.py::test_{number}" for number in range(1000)]
    tests += [f"tests/{place}::test_{number}" for place in files for number in range(5)]
    order = dealt(tests, processes)
    assert sorted(order) == list(range(len(tests)))
    cost = {place: seconds for places, seconds in COSTLY.items() for place in places[:1]}
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
