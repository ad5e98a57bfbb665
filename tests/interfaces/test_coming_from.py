"""The page for users of Optuna, W&B, Hydra or Lightning: the real packages run every block of both sides."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import hpo
from hpo.study.jobs import training_job
from search_spaces.domains import Float
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.workloads.program.training import ProgramPlace

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "coming_from.md"
TRAINING = """
def train(rate, momentum, batch):
    for epoch in range(30):
        yield 2.0 * (1 - min(0.5, float(rate))) ** epoch
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch

class Model(pl.LightningModule):
    def __init__(self, learning_rate):
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.net = torch.nn.Linear(4, 1)
    def loss(self, batch):
        goal = batch[0] @ torch.tensor([1.0, 1.0, 3.0, 10.0])
        return ((self.net(batch[0])[:, 0] - goal) ** 2).mean()
    def training_step(self, batch, _):
        return self.loss(batch)
    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)

def batches(size):
    inputs = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    inputs = inputs * torch.tensor([1.0, 1.0, 0.3, 0.1])    # the last is learnt over some epochs
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), size)
"""
SECTIONS = {"Optuna": "optuna", "W&B sweeps": "wandb", "Hydra": "hydra", "Lightning": "lightning"}
MOST_LINES, MOST_COLUMNS = 26, 52
"""Of a block: three beside each other are a screen."""


@dataclass(frozen=True)
class Section:
    """The blocks of one section of the page by the file that each names in its first line."""

    name: str
    files: dict[str, str]

    def write(self, folder: Path) -> None:
        (folder / "training.py").write_text(LIGHTNING if self.name == "Lightning" else TRAINING)
        for name, text in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)


def section(name: str) -> Section:
    _, _, rest = PAGE.read_text("utf-8").partition(f"\n## {name}\n")
    text = rest.partition("\n## ")[0]
    blocks = re.findall(r"^```\w+\n(.*?)^```$", text, re.M | re.S)
    files = {re.match(r"# ([\w./]+), ", block)[1]: block for block in blocks}
    assert len(files) == len(blocks)
    return Section(name, files)


def run(folder: Path, *words: str) -> str:
    """What a program prints; offline, and without the folder's results of others."""
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed(name: str) -> None:
    if importlib.util.find_spec(SECTIONS[name]) is None:
        pytest.skip(f"{SECTIONS[name]} is not installed: pip install 'largebatch[frameworks]'")


def test_the_page_has_these_sections_and_each_is_a_screen() -> None:
    text = PAGE.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == list(SECTIONS)
    for name in SECTIONS:
        files = section(name).files
        assert "study.yaml" in files and len(files) >= 3
        for block in map(str.splitlines, files.values()):
            assert len(block) <= MOST_LINES and max(map(len, block)) <= MOST_COLUMNS, block


@pytest.mark.parametrize("name", SECTIONS)
def test_the_study_of_a_section_is_one(name: str) -> None:
    spec = hpo.parse_study(section(name).files["study.yaml"])
    assert spec.search.scaled == ("learning_rate",)


def test_the_sweep_of_wandb_and_the_study_search_the_same_space() -> None:
    files = section("W&B sweeps").files
    sweep = yaml.safe_load(files["sweep.yaml"])
    spec = hpo.parse_study(files["study.yaml"])
    theirs = {
        name: Float(
            each["min"], each["max"], log=each["distribution"] == "log_uniform_values"
        ).to_optuna()
        for name, each in sweep["parameters"].items()
        if "min" in each
    }
    assert theirs == spec.search.to_optuna()
    assert sweep["metric"] == {"name": spec.target.metric, "goal": "minimize"}
    assert sweep["parameters"]["batch_size"]["value"] in spec.ladder


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_the_program_of_a_section_is_trained_as_its_study_says(tmp_path: Path, name: str) -> None:
    needed(name)
    section(name).write(tmp_path)
    spec = hpo.load_study(tmp_path / "study.yaml")
    settings = TrainingSettings(learning_rate=0.3, momentum=0.6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("PYTHONPATH", str(ROOT))
        job = training_job(spec, settings, spec.ladder[0], seed=0)
        training = begin_training(job, place=ProgramPlace(tmp_path / "trial"))
        points = []
        while not training.finished:
            points.append(training.advance())
    assert training.outcome.state == "reached"
    assert points[-1].metric <= 0.1 < points[0].metric
    assert [point.epochs for point in points] == list(range(1, len(points) + 1))


@pytest.mark.slow
def test_what_an_optuna_user_writes_runs(tmp_path: Path) -> None:
    section("Optuna").write(tmp_path)
    assert re.search(r"'rate': 0\.\d+, 'momentum'", run(tmp_path, "search.py"))


@pytest.mark.slow
def test_what_a_wandb_user_writes_runs_and_hpo_says_nothing_there(tmp_path: Path) -> None:
    needed("W&B sweeps")
    section("W&B sweeps").write(tmp_path)
    run(tmp_path, "train.py", "--learning_rate=0.3", "--momentum=0.6", "--batch_size=64")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_what_a_hydra_user_writes_sweeps(tmp_path: Path) -> None:
    needed("Hydra")
    section("Hydra").write(tmp_path)
    (command,) = re.findall(r"`python (train\.py -m [^`]+)`", PAGE.read_text("utf-8"))
    printed = run(tmp_path, *command.split())
    assert len(re.findall(r"^1 2\.0$", printed, re.M)) == 6  # three rates by two momenta


@pytest.mark.slow
def test_what_a_lightning_user_writes_finds_a_rate(tmp_path: Path) -> None:
    needed("Lightning")
    section("Lightning").write(tmp_path)
    assert float(run(tmp_path, "tune.py").strip().splitlines()[-1]) > 0
