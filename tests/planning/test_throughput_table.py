"""`hpo throughput`: what a table may contain, the error for each broken one, and the output."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpo.cli.main import main
from hpo.errors import EvidenceError
from hpo.planning.throughput import Measurement, fit_throughput
from hpo.planning.throughput.table import read_throughputs

GOOD = (
    "accelerators,global_batch_size,samples_per_second,nodes,accelerators_per_node,runs\n"
    "8,2048,24000,1,,5\n16,4096,46000.5,2,8,\n64,8193,170000,,8,3\n\n"
)
Writer = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def written(text: str) -> Path:
        path = tmp_path / "speeds.csv"
        path.write_text(text)
        return path

    return written


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["throughput", str(path), *options])


def test_reads_rows_with_what_is_known_of_their_nodes(write: Writer) -> None:
    assert read_throughputs(write(GOOD)) == [
        Measurement(8, 2048, 24000.0, nodes=1, runs=5),
        Measurement(16, 4096, 46000.5, nodes=2, accelerators_per_node=8),
        Measurement(64, 8193, 170000.0, accelerators_per_node=8, runs=3),
    ]


HEADER = "accelerators,global_batch_size,samples_per_second"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            "is empty; its first line must name the columns accelerators, global_batch_size, samples_per_second",
        ),
        (HEADER, "has a header but no rows; give one row per measured configuration"),
        (
            "accelerators,global_batch_size\n8,64\n",
            "column 'samples_per_second' is missing; the header is accelerators",
        ),
        (
            HEADER + ",samples_per_seconds\n8,64,1,1\n",
            "no column 'samples_per_seconds'.*did you mean 'samples_per_second'",
        ),
        (HEADER + ",accelerators\n8,64,1,1\n", "column 'accelerators' appears twice"),
        (HEADER + "\n8,64\n", "line 2: a row must have 3 cells"),
        (
            HEADER + "\n8,64,\n",
            "line 2, column 'samples_per_second' is empty; fill it or drop the row",
        ),
        (
            HEADER + "\n8,64,1\n0,64,1\n",
            "line 3, column 'accelerators' must be 1 or more, but got '0'",
        ),
        (
            HEADER + "\n8,64.5,1\n",
            "line 2, column 'global_batch_size' must be a whole number, but got '64.5'",
        ),
        (
            HEADER + "\n8,64,-3\n",
            "line 2, column 'samples_per_second' must be above 0, but got '-3'",
        ),
        (
            HEADER + "\n8,64,inf\n",
            "line 2, column 'samples_per_second' must be finite, but got 'inf'",
        ),
        (HEADER + "\n8,64,fast\n", "line 2, column 'samples_per_second': 'fast' is not a number"),
        (
            HEADER + ",nodes\n8,64,1,9\n",
            "line 2, column 'nodes' must not exceed the 8 accelerators, but got 9",
        ),
        (
            HEADER + ",nodes,accelerators_per_node\n16,64,1,1,8\n",
            "line 2: 1 nodes of 8 accelerators do not provide 16",
        ),
    ],
)
def test_a_broken_table_is_told_line_column_and_value(text: str, said: str, write: Writer) -> None:
    path = write(text)
    with pytest.raises(EvidenceError, match=said):
        read_throughputs(path)
    result = run(path, "--at", "16:128")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_prints_one_object_per_question_as_the_contract_says(write: Writer) -> None:
    path = write(GOOD)
    result = run(path, "--at", "256:32768", "--at", "100:4099", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [(each["accelerators"], each["global_batch_size"]) for each in printed] == [
        (256, 32768),
        (100, 4099),
    ]
    for each in printed:
        assert list(each) == [
            "accelerators",
            "global_batch_size",
            "samples_per_second",
            "limited_by",
            "trust",
            "reason",
        ]
        assert (
            0
            < each["samples_per_second"]["low"]
            < each["samples_per_second"]["median"]
            < each["samples_per_second"]["high"]
        )
        assert each["limited_by"] in ("compute", "network", "input", "control")
        assert each["trust"] in ("high", "medium", "low")
        assert each["reason"].endswith(".")
    assert printed[0] == fit_throughput(read_throughputs(path)).at(256, 32768).to_dict()


def test_prints_a_table_for_people(write: Writer) -> None:
    result = run(write(GOOD), "--at", "256:32768")
    assert result.exit_code == 0, result.output
    for word in ("256", "32,768", "128", "limited by", "90 % interval", "%", "trust"):
        assert word in result.stdout


@pytest.mark.parametrize(
    "asked",
    [
        *("256", "256:", "0:8", "8:0", "a:b", "8:64:2", "8.5:64", "-8:64"),
        *(f"8:1{zeros * '0'}" for zeros in (400, 5000)),
    ],
)
def test_a_question_that_is_not_two_counts_is_a_usage_error(asked: str, write: Writer) -> None:
    result = run(write(GOOD), "--at", asked)
    assert result.exit_code == 2
    assert "such as 512:16384" in result.stderr


def test_a_missing_table_and_a_missing_machine_are_told(tmp_path: Path, write: Writer) -> None:
    nowhere = run(tmp_path / "nowhere.csv", "--at", "8:64")
    assert (nowhere.exit_code, "cannot read the table" in nowhere.stderr) == (2, True)
    assert run(write(GOOD), "--at", "8:64", "--machine", "no-such-machine").exit_code == 2
    assert run(write(GOOD)).exit_code == 2


def test_the_machine_says_where_a_node_ends(write: Writer) -> None:
    path = write(HEADER + "\n1,128,1000\n2,256,1990\n4,512,3950\n")
    inside, apart = (
        json.loads(run(path, "--at", "6:768", "--json", *machine).stdout)[0]["samples_per_second"]
        for machine in (("--machine", "summit"), ("--machine", "piz_daint"))
    )
    assert inside != apart
