"""`hpo db`, `hpo export` and `hpo doctor`: their output, JSON and exit codes."""

import json
import socket
import sqlite3
import time
from pathlib import Path

import optuna
import pytest
from click.testing import CliRunner
from pyarrow import parquet

import hpo
from hpo.cli.commands import doctor_checks
from hpo.cli.main import main
from storage.migrations import HEAD
from storage.records import ConvergencePoint, NewStudy, StudyState
from storage.store import Store


def call(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def document(*arguments, code=0):
    return json.loads(call(*arguments, "--json", code=code).stdout)


@pytest.mark.parametrize("group", ["db", "export"])
def test_every_command_of_a_group_explains_itself_and_has_json(group):
    for name in main.commands[group].commands:
        text = call(group, name, "--help").stdout
        assert len(text.split("Options:")[0].strip().splitlines()) >= 3
        assert "--json" in text
        assert name in call(group, "--help").stdout


def test_upgrade(tmp_path, monkeypatch):
    monkeypatch.setenv("HPO_STORAGE", f"sqlite:///{tmp_path}/new.db")
    assert call("db", "upgrade").stdout == f"created the tables of schema {HEAD}\n"
    assert call("db", "upgrade").stdout == f"the schema was already {HEAD}, the newest\n"
    assert document("db", "upgrade") == {"before": HEAD, "after": HEAD}


@pytest.mark.medium
def test_check(study):
    found = document("db", "check")
    assert {each["name"]: each["level"] for each in found}[
        "curves"
    ] == "warn"  # trials written without curves
    lines = call("db", "check").stdout.splitlines()
    assert lines[0].split()[:2] == ["ok", "integrity"]
    assert lines[-1] == "0 failed, 1 to look at, 10 ok"
    with sqlite3.connect(study.folder / "hpo.db") as connection:
        connection.execute("DELETE FROM studies")
    connection.close()
    text = call("db", "check", code=1).stdout
    assert "fail  references   24 rows of trials refer to missing rows of studies" in text
    assert "-> restore a backup: hpo db restore FILE" in text


def test_backup_and_restore(study, monkeypatch):
    assert "24 rows" not in call("db", "backup", "copy.db").stdout
    told = document("db", "backup", "backup.zip")
    assert (told["form"], told["schema"], told["rows"]) == ("archive", HEAD, 25)
    assert "exists; give another name" in call("db", "backup", "backup.zip", code=2).stderr
    assert "has rows; give a new database" in call("db", "restore", "backup.zip", code=2).stderr
    assert (
        call("db", "restore", "backup.zip", "--replace").stdout
        == f"restored 25 rows of schema {HEAD}\n"
    )
    monkeypatch.setenv("HPO_STORAGE", "sqlite:///other.db")
    call("db", "restore", "copy.db")
    assert hpo.read_study("cells", "sqlite:///other.db").trials == study.result.trials


def test_prune(study):
    with Store.open(study.storage) as store:
        first, *_ = store.trials(store.study("cells").id)
        curve = [
            ConvergencePoint(step, 4 * step, step / 10, 1.0, 0.5, 0.5, 0.9, 0.1, 4)
            for step in (1, 2, 3)
        ]
        store.record({first.id: curve})
        store.set_study_state(store.study("cells").id, StudyState.FINISHED)

        def steps():
            return [point.step for point in store.points(first.id)]

        dry = document("db", "prune", "--older-than", "0d", "--dry-run")
        assert (dry["dry_run"], dry["points"], dry["trials"]) == (True, 2, 1)
        young = call("db", "prune", "--older-than", "90d", "--keep-best").stdout
        assert young.startswith("removed 0 points of 0 trials") and steps() == [1, 2, 3]
        assert call("db", "prune", "--older-than", "0d").stdout.startswith(
            "removed 2 points of 1 trials"
        )
        assert steps() == [3]  # the last point of a curve stays
    assert (
        "must be a number with a unit, such as 12h, 90d or 8w, but got '90'"
        in call("db", "prune", "--older-than", "90", code=2).stderr
    )
    assert "Missing option '--older-than'" in call("db", "prune", code=2).stderr


def test_vacuum(study):
    with Store.open(study.storage) as store:
        large = store.create_study(
            NewStudy(
                name="large",
                workload="resnet",
                metric="top1",
                threshold=0.9,
                higher_is_better=True,
                spec="x" * 2_000_000,
            )
        )
        store.delete_study(large.id)
    told = document("db", "vacuum")
    assert told["bytes_after"] < told["bytes_before"] - 1_900_000
    assert "KiB after" in call("db", "vacuum").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("db", "check"),
        ("db", "vacuum"),
        ("db", "backup", "b.zip"),
        ("db", "prune", "--older-than", "1d"),
        ("export", "parquet", "x", "--to", "out"),
        ("export", "optuna", "--to", "sqlite:///optuna.db"),
    ],
)
def test_a_wrong_path_is_not_made(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*command, "--storage", "sqlite:///none.db", code=2)
    assert "there is no file none.db" in result.stderr
    assert not (tmp_path / "none.db").exists()


def test_export_parquet(study):
    told = document("export", "parquet", "cells", "--to", "out")
    assert (told["trial_rows"], told["convergence_rows"]) == (24, 0)
    assert parquet.read_table(told["trials"]).num_rows == 24
    assert (
        "wrote out/trials.parquet (24 trials)"
        in call("export", "parquet", "cells", "--to", "out").stdout
    )
    assert "did you mean 'cells'" in call("export", "parquet", "cell", "--to", "out", code=2).stderr


@pytest.mark.slow
def test_export_optuna(study):
    assert (
        call("export", "optuna", "--to", "sqlite:///optuna.db").stdout
        == "cells: 24 trials (24 COMPLETE)\n"
    )
    theirs = optuna.load_study(study_name="cells", storage="sqlite:///optuna.db")
    assert theirs.best_value == min(trial.epochs_to_target for trial in study.result.trials)
    assert (
        "already has a study 'cells'; give another database, or --replace"
        in call("export", "optuna", "cells", "--to", "sqlite:///optuna.db", code=2).stderr
    )
    replaced = document("export", "optuna", "cells", "--to", "sqlite:///optuna.db", "--replace")
    assert (replaced[0]["study"], replaced[0]["trials"]["COMPLETE"]) == ("cells", 24)
    assert (
        "must not go into the largebatch database"
        in call("export", "optuna", "cells", "--to", study.storage, code=2).stderr
    )


def test_doctor_of_a_sound_machine(study):
    found = document("doctor", "--quick", "--port", _free_port())
    assert {each["level"] for each in found} == {"ok"}
    assert {"python", "base", "extra train", "storage", "clock", "disk", "ports", "network"} <= {
        each["name"] for each in found
    }


def test_doctor_says_what_is_wrong_and_the_way_out(study, monkeypatch):
    monkeypatch.setenv("HPO_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("HPO_TOKEN", "lb_token")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call(
            "doctor",
            "--quick",
            "--storage",
            "sqlite:///no/such/hpo.db",
            "--port",
            taken.getsockname()[1],
            code=1,
        )
    lines = [line.split() for line in result.stdout.splitlines()]
    levels = {words[1]: words[0] for words in lines if words[0] in ("ok", "warn", "fail")}
    assert (levels["storage"], levels["ports"], levels["server"]) == ("fail", "warn", "fail")
    assert "create it: mkdir -p no/such" in result.stdout
    assert "is `hpo serve` running there?" in result.stdout


def test_doctor_tells_missing_packages(monkeypatch):
    monkeypatch.setattr(
        doctor_checks, "_installed", lambda package: package not in ("torch", "uvicorn")
    )
    found = {each.name: each for each in doctor_checks.installation()}
    assert found["extra train"].message == "not installed: torch"
    assert found["extra train"].way_out == "pip install 'largebatch[train]'"
    assert found["extra serve"].message == "not installed: uvicorn"
    assert (found["extra export"].level, found["base"].level) == ("ok", "ok")
    assert "httpx" in doctor_checks.requirements("")
    assert "torch" not in doctor_checks.requirements("")


def test_what_a_probe_of_a_library_may_do():
    assert doctor_checks.probe("print('noise'); print('{\"a\": 1}')") == {"a": 1}
    assert (
        doctor_checks.probe("import no_such_library")
        == "ModuleNotFoundError: No module named 'no_such_library'"
    )
    assert doctor_checks.probe("import os; os.abort()") == "exit code -6"
    assert (
        doctor_checks.probe("import time; time.sleep(60)", seconds=0.2) == "no answer within 0.2 s"
    )


def test_a_probe_leaves_no_process_behind():
    told = doctor_checks.probe(
        "import json, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)']); print(json.dumps({'pid': child.pid}))",
        seconds=30,
    )
    status = Path(f"/proc/{told['pid']}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child of a probe lives on")


def _free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
