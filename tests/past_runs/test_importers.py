"""Every importer passes the contract tests; a plug-in is a command of `hpo import`, or one line if it is broken."""

import json
from pathlib import Path

import optuna
import pytest
import yaml
from click.testing import CliRunner
from past_run_samples import STUDY, mlflow_folder

from hpo.cli.commands import imports
from hpo.past_runs.importers import IMPORTERS
from hpo.testing import ImporterContract
from tests.fake_package import install_package


def csv_file(folder: Path) -> str:
    (folder / "runs.csv").write_text("run,lr,metric\na,0.1,0.5\nb,0.2,0.6\n")
    return str(folder / "runs.csv")


def wandb_file(folder: Path) -> str:
    (folder / "wandb.csv").write_text("Name,State,lr\na,finished,0.1\nb,crashed,0.2\n")
    return str(folder / "wandb.csv")


def tensorboard(folder: Path) -> str:
    writers = pytest.importorskip("tensorboardX", reason="writes event files")
    for run in ("a", "b"):
        if (folder / "logs" / run).exists():
            continue
        with writers.SummaryWriter(str(folder / "logs" / run)) as writer:
            for step in range(3):
                writer.add_scalar("top1", step / 4, step)
    return str(folder / "logs")


def optuna_file(folder: Path) -> str:
    url = f"sqlite:///{folder / 'optuna.db'}"
    if not (folder / "optuna.db").exists():
        made = optuna.create_study(study_name="some", storage=url)
        made.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=2)
    return url


SAMPLES = {
    "csv": csv_file,
    "wandb": wandb_file,
    "mlflow": lambda folder: str(mlflow_folder(folder)),
    "tensorboard": tensorboard,
    "optuna": optuna_file,
}
for importer in IMPORTERS.built_in:
    title = f"Test_{importer}"
    body = {"name": importer, "sample": staticmethod(SAMPLES[importer])}
    globals()[title] = type(title, (ImporterContract,), body)


MODULE = """
from hpo.past_runs.importers import ImporterDescription, ImporterOption
from hpo.past_runs.past_run import PastRun

def read(source, *, times):
    return [PastRun(f"{source} {time}", {"learning_rate": 0.1, "global_batch_size": 32, "epochs_to_target": 3,
            "state": "reached", "epochs": 3, "metric": 0.97, "seed": time}) for time in map(int, times)]

NOTES = ImporterDescription(
    rule="notes_of_a_test:read", about="somebody's notes", source="nobody", file=False,
    options={"times": ImporterOption(what="How often.", many=True)},
)
WRONG = "nothing"
"""


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = {"notes": "NOTES", "wrong": "WRONG", "mlperf": "NOTES"}
    install_package(
        monkeypatch,
        tmp_path,
        "some-notes",
        {
            "largebatch.importers": {
                name: f"notes_of_a_test:{entry}" for name, entry in entries.items()
            }
        },
        {"notes_of_a_test.py": MODULE},
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(imports.importing, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.usefixtures("notes")
def test_a_plug_in_s_importer_is_a_command_with_its_options() -> None:
    assert "somebody's notes" in call("--help")[1] and "wrong" not in call("--help")[1]
    assert "--times" in call("notes", "--help")[1]
    words = ("notes", "some source", "--times", "1", "--times", "2", "--study", "study.yaml")
    code, said = call(*words, "--json")
    assert code == 0, said
    assert json.loads(said)["states"] == {"reached": 2}
    assert json.loads(call(*words, "--json")[1])["known"] == 2
    assert yaml.safe_load(Path("study.yaml").read_text())["name"] == json.loads(said)["study"]


@pytest.mark.usefixtures("notes")
def test_one_with_a_fault_is_a_line_and_the_others_work() -> None:
    code, said = call("wrong", "some source", "--study", "study.yaml")
    assert code == 2 and "breaks the contract of its kind" in said and "some-notes 1.0" in said
    assert "--round" in call("mlperf", "--help")[1]  # the project's own
    assert "is a command of hpo import itself" in "".join(map(str, IMPORTERS.faults()))


@pytest.mark.usefixtures("notes")
def test_a_mistyped_importer_names_the_nearest() -> None:
    assert "did you mean 'notes'" in call("nots", "x")[1]
    assert "the choices are mlperf, csv" in call("zzzzzz", "x")[1]
