"""`hpo delete`, `hpo rename` and `hpo resume`, on databases and servers: what is removed, and the messages."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.errors import SpecError, StudyNotFoundError
from hpo.runs.repository import enter_study
from hpo.study.jobs import agent_folder
from storage.records import NewPlan, NewStudy, NewTrial, PlanKind, StudyState
from storage.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
from api_server import add_trials, fail_trials, served, spec_of


def call(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a study `bowl` of three trials, which has left files behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPO_STORAGE", raising=False)
    with Store.open("hpo.db") as store:
        store.create_study(
            NewStudy(
                name="bowl",
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec="# what it is for\n" + spec_of(),
            )
        )
        add_trials(store, "bowl", 3)
    for path in ("checkpoints/1", "trials/1/0", "checkpoints/2", "plans/mine"):
        (tmp_path / ".hpo" / path).mkdir(parents=True)
    (tmp_path / ".hpo" / "trials" / "1" / "0" / "report.jsonl").write_text("{}")
    return tmp_path


def test_a_deleted_study_is_gone_with_its_files(here):
    said = call("delete", "bowl", "--yes").stdout
    assert said.startswith("deleted bowl: 3 trials, 0 forecasts, 0 plans, 0 outcomes\n")
    assert f"removed {here}/.hpo/trials/1" in said
    assert [path.name for path in (here / ".hpo" / "checkpoints").iterdir()] == ["2"]
    assert not any((here / ".hpo" / "trials").iterdir())
    assert call("studies", "--json").stdout.strip() == "[]"
    assert "no study 'bowl'" in call("delete", "bowl", "--yes", code=2).output


@pytest.mark.parametrize("name", [".", ".."])
def test_no_new_study_is_named_after_a_folder_but_a_stored_one_can_be_renamed(here, name):
    spec = spec_of(name)
    with pytest.raises(SpecError, match="which cannot be part of a path or URL; add a letter"):
        hpo.run_study(hpo.parse_study(spec), "hpo.db")
    with pytest.raises(SpecError, match="cannot be part of a path"):
        hpo.rename_study("bowl", name, "hpo.db")
    with Store.open("hpo.db") as store:
        store.create_study(
            NewStudy(
                name=name,
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec=spec,
            )
        )
    assert hpo.read_study(name, "hpo.db").spec.name == name
    assert hpo.rename_study(name, "dots", "hpo.db").name == "dots"


@pytest.mark.parametrize(
    "search",
    [
        {"optimizer": "adamw", "weight_decay_epochs": 5, "weight_decay": 0.1},
        {"batch_control": "noise_scale", "gradient_reduction": "adasum"},
    ],
)
def test_settings_that_no_new_study_may_have_stay_in_a_stored_one(here, search):
    lines = "".join(f"  {name}: {value}\n" for name, value in search.items())
    spec = spec_of("both").replace("search:\n", f"search:\n{lines}")
    last = list(search)[-1]
    number = 1 + spec.splitlines().index(f"  {last}: {search[last]}")
    fault = rf"line {number}: .*{last}"
    (here / "both.yaml").write_text(spec)
    assert re.search(fault, call("study", "check", "both.yaml", code=2).output)
    with Store.open("hpo.db") as store:
        with pytest.raises(SpecError, match=fault):
            enter_study(store, hpo.parse_study(spec))
        stored = store.create_study(
            NewStudy(
                name="both",
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec=spec,
            )
        )
        assert enter_study(store, hpo.parse_study(spec)).id == stored.id
    assert search.items() <= hpo.read_study("both", "hpo.db").spec.search.fixed.items()
    assert hpo.rename_study("both", "renamed", "hpo.db").name == "renamed"
    assert search.items() <= hpo.read_study("renamed", "hpo.db").spec.search.fixed.items()


PROGRAM = """\
name: program
workload: program
program:
  command: [python, train.py, "{learning_rate}", "{global_batch_size}"]
  train_samples: 10000
  report: {metrics: {top1: true}}
target: {metric: top1, at_least: 0.8}
ladder: [64, 128]
search: {learning_rate: {log_uniform: [0.01, 10], role: scaled}}
budget: {trials: 4, epochs_per_trial: 12}
"""


def test_a_program_keeps_the_length_of_its_epoch_but_not_its_command(tmp_path):
    with Store.open(tmp_path / "hpo.db") as store:
        stored = enter_study(store, hpo.parse_study(PROGRAM))
        for change in (("train.py", "right.py"), ("{top1: true}", "{top1: true, top5: true}")):
            assert enter_study(store, hpo.parse_study(PROGRAM.replace(*change))).id == stored.id
        with pytest.raises(
            SpecError,
            match=r"line 5: .*another program.train_samples.* would not be comparable: "
            r"10000 there, 20000 here; rename this study, or the stored one",
        ):
            enter_study(store, hpo.parse_study(PROGRAM.replace("10000", "20000")))
        flipped = PROGRAM.replace("top1: true", "top1: false").replace("at_least", "at_most")
        with pytest.raises(SpecError, match="another target"):
            enter_study(store, hpo.parse_study(flipped))


def test_plans_that_were_written_elsewhere_stay_and_are_told(here):
    result = hpo.read_study("bowl", "hpo.db")
    with Store.open("hpo.db") as store:
        for folder in (here / ".hpo" / "plans" / "mine", here / "out"):
            folder.mkdir(exist_ok=True)
            store.add_plan(
                NewPlan(
                    study_id=result.study.id,
                    kind=PlanKind.LINEAR_SCALING,
                    machine="local",
                    nodes=1,
                    workers=1,
                    global_batch_size=512,
                    local_batch_size=512,
                    settings=result.trials[0].settings,
                    directory=str(folder),
                )
            )
    gone = json.loads(call("delete", "bowl", "--yes", "--json").stdout)
    assert (gone["trials"], gone["plans"], gone["kept"]) == (3, 2, [str(here / "out")])
    assert (here / "out").is_dir() and not (here / ".hpo" / "plans" / "mine").exists()


def test_files_of_a_run_that_may_be_another_databases_stay(here):
    (here / "elsewhere").mkdir()
    (here / "hpo.db").rename(here / "elsewhere" / "hpo.db")
    call("delete", "bowl", "--yes", "--storage", here / "elsewhere" / "hpo.db")
    assert (here / ".hpo" / "trials" / "1").is_dir()


def test_files_of_other_studies_stay_whatever_the_name_of_a_deleted_study_is(here):
    """Names that are folders above, and a name that is another study's number."""
    kept = [*(here / ".hpo").rglob("*")]
    for name in ("..", ".", "1"):
        with Store.open("hpo.db") as store:
            store.create_study(
                NewStudy(
                    name=name,
                    workload="noisy_quadratic",
                    metric="loss",
                    threshold=0.1,
                    higher_is_better=False,
                    spec=spec_of(name),
                )
            )
        (of_agents := agent_folder(here / ".hpo", name)).mkdir(parents=True)
        assert of_agents.resolve().parent == here / ".hpo" / "agents"
        call("delete", name, "--yes")
        assert not of_agents.exists()
        assert all(path.exists() for path in kept if path.name != "2")  # their own id


def test_nothing_is_deleted_without_a_word(here):
    refused = call("delete", "bowl", code=2)
    assert "--yes" in refused.output
    assert len(hpo.read_study("bowl", "hpo.db").trials) == 3


def test_a_renamed_study_has_its_trials_its_comments_and_its_new_name(here):
    said = call("rename", "bowl", "salad bowl: 2").stdout
    assert "bowl is now named salad bowl: 2" in said and "its file" in said
    result = hpo.read_study("salad bowl: 2", "hpo.db")
    assert len(result.trials) == 3 and result.spec.name == "salad bowl: 2"
    assert result.study.spec.startswith("# what it is for\n")
    with pytest.raises(StudyNotFoundError):
        hpo.read_study("bowl", "hpo.db")
    with pytest.raises(SpecError, match="no space at its ends"):
        hpo.rename_study("salad bowl: 2", " bowl", "hpo.db")


@pytest.mark.parametrize("command", [("delete", "bowl", "--yes"), ("rename", "bowl", "dish")])
def test_a_study_that_is_running_is_refused_until_nobody_runs_it(here, command):
    with Store.open("hpo.db") as store:
        study = store.study("bowl")
        store.take_study(study.id, "another-host:7", lease_seconds=60)
        refused = call(*command, code=1)
        assert "error: the study 'bowl' is running; cancel it first" in refused.output
    with Store.open("hpo.db") as store:
        assert len(store.trials(study.id)) == 3


def test_a_study_whose_process_is_gone_runs_no_more(here):
    from hpo.runs.lease import lease_holder_name

    with Store.open("hpo.db") as store:
        gone = f"{lease_holder_name().rpartition(':')[0]}:{2**22 + 7}"
        store.take_study(store.study("bowl").id, gone, lease_seconds=60)
    call("rename", "bowl", "dish")
    with Store.open("hpo.db") as store:
        study = store.study("dish")
        store.set_study_state(study.id, StudyState.QUEUED)
        new = NewTrial(global_batch_size=64, seed=3, settings=store.trials(study.id)[0].settings)
        held = store.lease_trial(
            study.id, new, known=3, key="k", holder="agent", lease_seconds=0.001
        )
        assert held is not None
    call("delete", "dish", "--yes")


def test_at_a_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with served(tmp_path) as api:
        url = str(api.client.base_url)
        monkeypatch.setenv("HPO_TOKEN", api.token("ada"))
        monkeypatch.setenv("HPO_SERVER", url)
        (tmp_path / "study.yaml").write_text(spec_of("bowl"))
        call("submit", "study.yaml")
        fail_trials(api.store, "bowl", 2)
        call("cancel", "bowl")
        shown = json.loads(call("resume", "bowl", "--json").output)
        assert shown["trials"] == {"failed": 2} and shown["state"] == "queued"
        shown = json.loads(call("resume", "bowl", "--retry-failed", "--json").output)
        assert shown["trials"] == {"queued": 2}
        call("rename", "bowl", "dish", "--server", url)
        assert api.store.study("dish").name == "dish"
        assert "--yes" in call("delete", "dish", "--server", url, code=2).output
        lease = api.store.claim_study("worker", lease_seconds=60)
        assert "running" in call("delete", "dish", "--server", url, "--yes", code=2).output
        api.store.release_study(lease, StudyState.FAILED)
        monkeypatch.setenv("HPO_TOKEN", api.token("bob"))
        assert "belongs to ada" in call("delete", "dish", "--server", url, "--yes", code=2).output
        monkeypatch.setenv("HPO_TOKEN", api.token("ada"))
        assert "dish was deleted at" in call("delete", "dish", "--server", url, "--yes").output
        assert api.store.studies() == []
