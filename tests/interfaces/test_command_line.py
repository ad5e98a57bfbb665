"""Every command: its help, its JSON, its tables, and what it leaves on stdout and stderr."""

import csv
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.commands import options
from hpo.cli.main import main
from hpo.cli.output.tables import show_trials, write_csv
from hpo.runs.formatting import format_number, format_percent

pytestmark = pytest.mark.fit

COMMANDS = sorted(main.commands)
SILENT = (
    "record",
    "report",
    "trials",
    "serve",
    "worker",
    "revoke",
    "example",
    "init",
    "install-horovod",
    "mcp",
)


def every_command():
    """Every command as the words that call it: those of a group one by one."""
    for name in COMMANDS:
        group = getattr(main.commands[name], "commands", None)
        yield from ((name, inner) for inner in group) if group else [(name,)]


def call(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    text = call(command, "--help")
    assert len(text.split("Options:")[0].strip().splitlines()) >= 3


@pytest.mark.parametrize(
    "words", [words for words in every_command() if words[-1] not in SILENT], ids=" ".join
)
def test_every_command_that_answers_has_json(words):
    assert "--json" in call(*words, "--help")


def test_help_loads_nothing_heavy():
    script = (
        "import sys; from click.testing import CliRunner; from hpo.cli.main import main; "
        "CliRunner().invoke(main, ['--help']); "
        "print([name for name in ('torch', 'ray', 'optuna', 'sqlalchemy', 'numpy', 'pydantic') "
        "if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_show_prints_one_document(study):
    document = json.loads(call("show", "cells", "--json"))
    assert set(document) == {
        "study",
        "trials",
        "rungs",
        "laws",
        "forecast",
        "plan",
        "outcome",
        "baselines",
        "importances",
    }
    assert [each["global_batch_size"] for each in document["importances"]] == [None, 4, 8, 16]
    assert document["trials"]["reached"] == document["trials"]["total"] == 24
    assert [rung["global_batch_size"] for rung in document["rungs"]] == [4, 8, 16]
    best = document["rungs"][0]
    trials = [t for t in study.result.trials if t.global_batch_size == 4]
    assert best["best_epochs_to_target"] <= min(t.epochs_to_target for t in trials) * 1.2
    assert best["best_settings"]["learning_rate"] == pytest.approx(0.02, rel=0.5)
    assert document["forecast"]["global_batch_size"] == 64
    assert set(document["laws"]) >= {"epochs_to_target", "learning_rate"}


def test_forecast_keeps_the_contract(study):
    forecasts = json.loads(call("forecast", "cells", "--at", "32", "--at", "64", "--json"))
    assert [each["global_batch_size"] for each in forecasts] == [32, 64]
    for each in forecasts:
        epochs = each["epochs_to_target"]
        assert epochs["low"] <= epochs["median"] <= epochs["high"]
        assert set(each["settings"]) == {"learning_rate"}
        assert each["trust"] in ("high", "medium", "low") and each["reason"]


def test_forecast_says_what_may_happen(study):
    document = json.loads(
        call("forecast", "cells", "--at", "64", "--budget-epochs", "30", "--json")
    )[0]
    shown = " ".join(call("forecast", "cells", "--at", "64", "--budget-epochs", "30").split())
    within = {each["epochs"]: each["probability"] for each in document["chance_of_reaching"]}
    assert f"{format_percent(within[30.0])} within 30" in shown
    assert f"risk of divergence {format_percent(document['divergence'])}" in shown
    half, twice = (
        each["epochs_factor"]["median"] for each in document["sensitivity"]["learning_rate"]
    )
    assert f"half the learning rate {format_number(half)} (" in shown
    assert f"twice the learning rate {format_number(twice)} (" in shown
    assert f"regime {document['regime']}; critical batch size" in shown
    assert f"at 64, trust {document['trust']}: {document['reason']}" in shown
    assert "earlier forecasts none to compare with yet" in shown
    assert f"risk of divergence {format_percent(document['divergence'])}" in " ".join(
        call("show", "cells").split()
    )


def test_extrapolate_keeps_the_contract(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(
        "global_batch_size,epochs_to_target,learning_rate,runs,sd\n"
        "256,10.2,0.1,5,0.3\n512,10.5,0.2,5,0.3\n1024,11.1,0.35,5,0.3\n2048,12.3,0.6,5,0.4\n"
    )
    forecasts = json.loads(call("extrapolate", table, "--at", "4096", "--at", "8192", "--json"))
    assert [each["global_batch_size"] for each in forecasts] == [4096, 8192]
    for each in forecasts:
        assert {"global_batch_size", "epochs_to_target", "settings", "trust", "reason"} <= set(each)
        assert (
            set(each["epochs_to_target"])
            == set(each["settings"]["learning_rate"])
            == {"median", "low", "high"}
        )
    first, second = (each["epochs_to_target"] for each in forecasts)
    assert 12.3 < first["median"] < second["median"]
    assert "4096" in call("extrapolate", table, "--at", "4096")


def test_trials_in_three_forms(study):
    rows = json.loads(call("trials", "cells", "--format", "json"))
    table = list(csv.DictReader(io.StringIO(call("trials", "cells", "--format", "csv"))))
    assert len(rows) == len(table) == 24
    for row, line, trial in zip(rows, table, study.result.trials, strict=True):
        assert (
            float(line["learning_rate"]) == row["learning_rate"] == trial.settings["learning_rate"]
        )
        assert float(line["epochs_to_target"]) == row["epochs_to_target"] == trial.epochs_to_target
        assert line["state"] == row["state"] == "reached"
    assert "reached" in call("trials", "cells")


def failed(number, last_words):
    log = f"/runs/trials/1/{number}/log.txt"
    reason = f"the program failed: it ended with exit code 2; the end of {log}:\nusage: train.py\n{last_words}"
    return SimpleNamespace(
        number=number,
        global_batch_size=64,
        seed=0,
        settings={"learning_rate": 0.1},
        state="failed",
        epochs_to_target=None,
        epochs=0.0,
        reason=reason,
    )


def test_each_cause_of_failures_is_told_once_with_its_trials(capsys):
    trials = [
        failed(0, "no data set"),
        failed(1, "rate 0.3 is too high"),
        failed(2, "no data set"),
        failed(3, "rate 0.7 is too high"),
        failed(4, "no data set"),
        failed(5, "out of memory"),
    ]
    show_trials(
        SimpleNamespace(
            study=SimpleNamespace(name="mine"),
            spec=SimpleNamespace(
                varied=["learning_rate"],
                constraints=(),
                question=SimpleNamespace(fixed=False, constraints=()),
            ),
            trials=trials,
        )
    )
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("no data set") == said.count("is too high") == 1
    assert "3 trials (0, 2, 4): the program failed" in said
    assert "2 trials (1, 3): the program failed" in said
    assert "trial 5: the program failed" in said
    assert said.count("/log.txt") == 3


def test_a_cell_of_a_csv_table_is_one_line():
    out = io.StringIO()
    write_csv([{"reason": "it failed:\nusage: a\r\n  error: b\n"}], out)
    assert out.getvalue() == "reason\nit failed: | usage: a | error: b\n"


def test_no_text_of_a_table_is_a_formula_to_a_spreadsheet():
    out = io.StringIO()
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "loss = 1", ""]
    write_csv([{"reason": text, "epochs": -1.5} for text in texts], out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    assert [row["reason"] for row in rows] == [f"'{text}" for text in texts[:5]] + texts[5:]
    assert {row["epochs"] for row in rows} == {"-1.5"}


def test_no_name_of_a_column_is_a_formula_or_a_further_line():
    out = io.StringIO()
    write_csv([{"number": 0, "=1+1": 0.5, "a\nb": 0.6}], out)
    assert out.getvalue() == "number,'=1+1,a | b\n0,0.5,0.6\n"


def test_studies_lists_them(study):
    assert [each["name"] for each in json.loads(call("studies", "--json"))] == ["cells"]
    assert "accuracy ≥ 0.98" in call("studies")


@pytest.mark.slow
def test_plan_launch_and_calibration(study):
    plan = json.loads(
        call("plan", "cells", "--output", study.folder / "plan", "--workers", "1", "--json")
    )
    forecast = json.loads(call("forecast", "cells", "--json"))[0]
    assert plan["epochs_to_target"] == forecast["epochs_to_target"]
    assert plan["settings"] == forecast["complete_settings"]
    assert {path.name for path in (study.folder / "plan").iterdir()} == {
        "plan.json",
        "job.json",
        "launch.sh",
    }
    assert json.loads((study.folder / "plan" / "plan.json").read_text()) == plan
    again = json.loads(
        call("plan", "cells", "--output", study.folder / "again", "--workers", "1", "--json")
    )
    assert again["id"] == plan["id"]  # it exists, and its folder is written all the same
    assert (study.folder / "again" / "job.json").read_text() == (
        study.folder / "plan" / "job.json"
    ).read_text()
    outcome = json.loads(call("launch", plan["id"], "--backend", "torch", "--json"))[0]
    assert outcome["state"] == "reached"
    row = json.loads(call("calibration", "--json"))[0]
    assert row["observed_epochs_mean"] == outcome["epochs_to_target"]
    assert row["predicted_epochs_median"] == forecast["epochs_to_target"]["median"]
    table = call("calibration")
    assert f"{outcome['epochs_to_target']:.3g}" in table
    held = "of 1 intervals of epochs contained the outcome"
    assert f"1 {held}" in table or f"0 {held}" in table
    shown = call("show", "cells")
    assert f"{outcome['epochs_to_target']:.3g}" in shown
    call(
        "plan",
        "cells",
        "--output",
        study.folder / "larger",
        "--workers",
        "1",
        "--global-batch-size",
        "128",
        "--json",
    )
    document = json.loads(call("show", "cells", "--json"))
    assert document["plan"] == plan  # the one for the study's own batch, not the newest of all
    assert document["outcome"]["observed_epochs_to_target"] == outcome["epochs_to_target"]
    told = " ".join(call("launch", study.folder / "again", "--backend", "torch").split())
    assert "over the whole run, including startup, it was" in told
    assert list((study.folder / "again").rglob("outcome.jsonl"))  # in the folder that was named


def test_machines_shows_this_one():
    assert json.loads(call("machines", "local", "--json"))["accelerators_per_node"] >= 1


def test_a_name_with_markup_is_shown_as_text(study):
    from storage.records import NewStudy
    from storage.store import Store

    with Store.open(study.storage) as store:
        store.create_study(
            NewStudy(
                name="[red]<b>x</b>",
                workload="w",
                metric="m",
                threshold=1.0,
                higher_is_better=True,
                spec="-",
            )
        )
    assert "[red]<b>x</b>" in call("studies")


def test_import_hpo_loads_nothing_heavy():
    script = (
        "import sys, hpo; print([name for name in sys.modules if name.partition('.')[0] in ('torch', 'ray', "
        "'optuna', 'sqlalchemy', 'numpy', 'pydantic', 'plotly', 'fastapi', 'storage', 'trainers')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_what_import_hpo_offers():
    for name in hpo.__all__:
        assert getattr(hpo, name) is not None
    assert set(hpo.__all__) <= set(dir(hpo))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hpo.nothing


@pytest.mark.parametrize("before", [None, "cuda"])
def test_the_device_is_told_to_every_process_of_a_command_and_to_none_after_it(monkeypatch, before):
    monkeypatch.delenv("HPO_DEVICE", raising=False)
    if before:
        monkeypatch.setenv("HPO_DEVICE", before)

    @click.command()
    @options.device
    def shown():
        click.echo(str(os.environ.get("HPO_DEVICE")))

    for arguments, found in ((["--device", "cpu"], "cpu"), ([], str(before))):
        assert CliRunner().invoke(shown, arguments).stdout.strip() == found
        assert os.environ.get("HPO_DEVICE") == before
    for name in ("run", "launch"):
        assert {"device", "compile"} <= {each.name for each in main.commands[name].params}


def test_every_process_of_a_command_is_told_to_compile(monkeypatch):
    monkeypatch.delenv("HPO_COMPILE", raising=False)

    @click.command()
    @options.compiles
    def shown():
        click.echo(str(os.environ.get("HPO_COMPILE")))

    for arguments, found in ((["--compile"], "inductor"), ([], "None")):
        assert CliRunner().invoke(shown, arguments).stdout.strip() == found
        assert "HPO_COMPILE" not in os.environ
