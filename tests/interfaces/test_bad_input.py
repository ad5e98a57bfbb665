"""Bad input ends with exit code 2 and one clear message, and leaves nothing behind."""

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from storage.store import Store

STUDY = """\
name: digits
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.96}
ladder: [16, 32]
search:
  learning_rate: {log_uniform: [0.01, 1.0], role: scaled}
budget: {trials: 4, epochs_per_trial: 2}
"""
TABLE = "global_batch_size,epochs_to_target\n128,10\n256,11\n"


def refused(*arguments):
    """Run a command that must be refused; returns what it printed on stderr."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def a_study(folder: Path, old: str = "", new: str = "") -> Path:
    path = folder / "study.yaml"
    assert old in STUDY
    path.write_text(STUDY.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("budget:", "budgets:", ("line 8", "budgets", "did you mean 'budget'")),
        (
            "learning_rate:",
            "learning_rat:",
            ("line 7", "learning_rat", "did you mean 'learning_rate'"),
        ),
        ("[16, 32]", "[32, 16]", ("line 5", "ladder", "16 after 32")),
        ("metric: top1", "metric: top_1", ("line 4", "top_1", "did you mean 'top1'", "top5")),
        (
            "source: digits",
            "source: image_folder, path: not_there",
            ("line 3", "not_there", "does not exist"),
        ),
        (
            "search:",
            "full_scale: {global_batch_size: 64, workers: 3}\nsearch:",
            ("line 6", "3 workers", "is 2"),
        ),
        (
            "search:",
            "full_scale: {global_batch_size: 64, machine: summitt}\nsearch:",
            ("line 6", "summitt", "machine file"),
        ),
        ("workload: resnet", "workload: resnt", ("line 2", "resnt", "did you mean 'resnet'")),
        ("workload: resnet", "workload: no_such_module:Thing", ("line 2", "no_such_module")),
    ],
)
def test_a_study_that_breaks_a_rule(tmp_path, old, new, words):
    path = a_study(tmp_path, old, new)
    message = refused("run", path, "--storage", f"sqlite:///{tmp_path}/hpo.db")
    assert message.startswith(f"error: {path}, line ")
    assert message.count("\n") == 1
    for word in words:
        assert word in message


def test_a_study_file_that_is_missing(tmp_path):
    assert "missing.yaml" in refused("run", tmp_path / "missing.yaml")


def test_a_database_that_cannot_be_opened(tmp_path):
    path = a_study(tmp_path)
    message = refused("run", path, "--storage", f"sqlite:///{tmp_path}/no/such/folder/hpo.db")
    assert "no/such/folder" in message
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database at all" * 100)
    assert "garbage.db" in refused("studies", "--storage", f"sqlite:///{garbage}")
    assert garbage.read_bytes().startswith(b"this is no database")


def test_a_database_of_another_program_is_left_alone(tmp_path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("create table studies (x int)")
    connection.close()
    assert "other.db" in refused("studies", "--storage", f"sqlite:///{other}")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "global_batch_size,epochs_to_target\n128,10\n256,abc\n",
            ("line 3", "epochs_to_target", "abc"),
        ),
        (
            "global_batch_size,epochs_to_target\n128,10\n-256,11\n",
            ("line 3", "global_batch_size", "-256"),
        ),
        ("global_batch_size,epochs\n128,10\n", ("epochs_to_target",)),
        (
            "global_batch_size,epochs_to_target,learning_rat\n128,10,1\n",
            ("learning_rat", "learning_rate"),
        ),
        ("", ("empty",)),
    ],
)
def test_a_table_with_a_broken_row(tmp_path, table, words):
    path = tmp_path / "table.csv"
    path.write_text(table)
    message = refused("extrapolate", path, "--at", "1024", "--json")
    for word in ("table.csv", *words):
        assert word in message


def test_a_batch_size_that_is_none(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    assert "--at" in refused("extrapolate", tmp_path / "table.csv", "--at", "0")
    assert "--at" in refused("extrapolate", tmp_path / "table.csv")


@pytest.mark.parametrize("batch", [2**31, 2**64, 10**26, 10**400])
@pytest.mark.parametrize("command", [("extrapolate", "table.csv"), ("forecast", "nothing")])
def test_a_batch_size_beyond_every_study(tmp_path, monkeypatch, command, batch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(TABLE)
    message = refused(*command, "--at", batch)
    assert f"{batch} is not in the range 1<=x<=2147483647" in message and "--at" in message


@pytest.mark.parametrize(
    "command",
    [
        ("show", "nothing"),
        ("trials", "nothing"),
        ("forecast", "nothing", "--at", "64"),
        ("plan", "nothing"),
        ("report", "nothing"),
        ("launch", "7"),
        ("launch", "no/such/folder"),
    ],
)
def test_what_is_not_in_the_storage(tmp_path, command):
    Store.open(f"sqlite:///{tmp_path}/hpo.db").close()
    message = refused(*command, "--storage", f"sqlite:///{tmp_path}/hpo.db")
    assert any(word in message for word in ("nothing", "7", "no/such/folder"))


@pytest.mark.parametrize(
    "command", [("studies",), ("show", "a"), ("plan", "a"), ("report", "a"), ("calibration",)]
)
def test_what_only_reads_makes_no_storage(tmp_path, command):
    assert "there is no file" in refused(*command, "--storage", f"sqlite:///{tmp_path}/hpo.db")
    assert not (tmp_path / "hpo.db").exists()


def test_a_machine_that_is_unknown_or_badly_described(tmp_path):
    assert "summitt" in refused("machines", "summitt")
    (tmp_path / "machine.yaml").write_text(
        "{name: m, nodes: -3, accelerators_per_node: 4, source: made up}"
    )
    assert "-3" in refused("machines", tmp_path / "machine.yaml")
    (tmp_path / "machine.yaml").write_text("{name: m, nodes: 3}")
    assert "accelerators_per_node" in refused("machines", tmp_path / "machine.yaml")
