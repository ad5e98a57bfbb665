"""A study whose trials are written directly to the database, so that interfaces are tested without a sweep."""

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import hpo
from search_spaces.settings import TrainingSettings
from storage.maintenance.maintenance import backup
from storage.records import NewStudy, NewTrial, TrialResult, TrialState
from storage.store import Store

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_workload"


@dataclasses.dataclass(frozen=True)
class StudyInFolder:
    """The example study `cells` with 24 trials that follow a known law, in a folder of its own."""

    folder: Path

    @property
    def storage(self):
        return f"sqlite:///{self.folder}/hpo.db"

    @property
    def result(self):
        return hpo.read_study("cells", self.storage)


@pytest.fixture(scope="session")
def study_database(tmp_path_factory):
    """The database of the study, written once; a test gets a copy."""
    folder = tmp_path_factory.mktemp("study")
    spec = hpo.load_study(EXAMPLE / "cells.yaml")
    with Store.open(f"sqlite:///{folder}/hpo.db") as store:
        made = store.create_study(
            NewStudy(
                name="cells",
                workload=spec.workload,
                metric="accuracy",
                threshold=0.98,
                higher_is_better=True,
                spec=spec.text,
            )
        )
        trials = [trial for batch in (4, 8, 16) for trial in trials_of(spec, batch)]
        for trial, epochs in zip(
            store.add_trials(made.id, [new for new, _ in trials]),
            [e for _, e in trials],
            strict=True,
        ):
            store.start_trials([trial.id])
            store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.REACHED,
                    epochs_to_target=epochs,
                    epochs=epochs,
                    steps=round(426 * epochs / trial.global_batch_size),
                    seconds=epochs / 10,
                    best_metric=0.99,
                    final_metric=0.99,
                    resolution_epochs=0.25,
                ),
            )
    backup(f"sqlite:///{folder}/hpo.db", folder / "copy.db")
    return folder / "copy.db"


@pytest.fixture
def study(tmp_path, monkeypatch, study_database):
    for name in ("cells.py", "cells.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_STORAGE", f"sqlite:///{tmp_path}/hpo.db")
    shutil.copy(study_database, tmp_path / "hpo.db")
    return StudyInFolder(tmp_path)


def trials_of(spec, batch):
    """Epochs 2 (1 + batch / 64) at the best learning rate 0.02 batch / 4, more by the square of the log miss."""
    noise = np.random.default_rng(batch)
    for factor, seed in (
        (0.25, 0),
        (0.5, 0),
        (1.0, 0),
        (1.0, 1),
        (2.0, 0),
        (4.0, 0),
        (1.4, 0),
        (0.7, 0),
    ):
        settings = TrainingSettings(
            learning_rate=0.005 * batch * factor, normalization_batch_size=1
        )
        epochs = (
            2
            * (1 + batch / 64)
            * math.exp(0.3 * math.log(factor) ** 2 + 0.03 * noise.standard_normal())
        )
        yield NewTrial(global_batch_size=batch, seed=seed, settings=settings.to_dict()), epochs
