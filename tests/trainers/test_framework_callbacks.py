"""Lightning, Hugging Face's Trainer and Keras as programs: their callbacks report, and stop when asked to."""

import importlib
import importlib.util
import json
import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.begin import begin_training
from trainers.workloads.program.training import ProgramPlace

pytestmark = pytest.mark.processes

DATA = """
import sys, warnings
import torch
from torch import nn
from sklearn.datasets import load_digits
warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
rate, batch = float(sys.argv[1]), int(sys.argv[2])
"""

LIGHTNING = (
    DATA
    + """
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from hpo.callbacks.lightning import LightningReport

class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)
    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, _):
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=rate)

train = DataLoader(TensorDataset(images[:1440], labels[:1440]), batch, shuffle=True)
test = DataLoader(TensorDataset(images[1440:], labels[1440:]), 400)
trainer = pl.Trainer(
    max_epochs=50, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[LightningReport({"top1": "val_acc", "train_loss": "train_loss"})],
    val_check_interval=0.5,
)
trainer.fit(Digits(), train, test)
open("left", "w").write(str(trainer.current_epoch))
"""
)

TRANSFORMERS = (
    DATA
    + """
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from hpo.callbacks.transformers import TrainerReport

class Part(Dataset):
    def __init__(self, part):
        self.images, self.labels = images[part], labels[part]
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        return {"x": self.images[index], "labels": self.labels[index]}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)
    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

trainer = Trainer(
    Net(),
    TrainingArguments(
        "output", num_train_epochs=50, per_device_train_batch_size=batch, learning_rate=rate, use_cpu=True,
        eval_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True, optim="sgd",
    ),
    train_dataset=Part(slice(0, 1440)),
    eval_dataset=Part(slice(1440, None)),
    compute_metrics=lambda found: {"top1": (found.predictions.argmax(1) == found.label_ids).mean()},
    callbacks=[TrainerReport()],
)
trainer.train()
open("left", "w").write(str(trainer.state.epoch))
"""
)

KERAS = (
    "import os; os.environ['KERAS_BACKEND'] = 'torch'\n"
    + DATA
    + """
import keras
from hpo.callbacks.keras import KerasReport

model = keras.Sequential([keras.layers.Dense(10)])
model.compile(
    keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(
    images[:1440].numpy(), labels[:1440].numpy(), batch, epochs=50, verbose=0,
    validation_data=(images[1440:].numpy(), labels[1440:].numpy()),
    callbacks=[KerasReport({"top1": "val_accuracy", "train_loss": "loss"})],
)
open("left", "w").write(str(len(history.epoch)))
"""
)


STREAM = """
from torch.utils.data import IterableDataset

class Stream(IterableDataset):
    def __init__(self, part):
        self.part = part
    def __iter__(self):
        return (self.part[index] for index in torch.randperm(len(self.part)).tolist())
"""


def streamed(program, **changes):
    """The program with training data that have no length."""
    for old, new in changes.values():
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    return DATA + STREAM + program.removeprefix(DATA)


STREAMED_LIGHTNING = streamed(
    LIGHTNING,
    data=(
        "DataLoader(TensorDataset(images[:1440], labels[:1440]), batch, shuffle=True)",
        "DataLoader(Stream(TensorDataset(images[:1440], labels[:1440])), batch)",
    ),
    evaluations=("val_check_interval=0.5", "val_check_interval=24"),
)
STREAMED_TRANSFORMERS = streamed(
    TRANSFORMERS,
    data=("train_dataset=Part(slice(0, 1440))", "train_dataset=Stream(Part(slice(0, 1440)))"),
    length=("num_train_epochs=50", "max_steps=2400"),
)


def stub(monkeypatch, name, **contents):
    """Put a module with these contents in place of a library that takes seconds to import."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def test_an_evaluation_after_the_training_is_not_reported_again(tmp_path: Path, monkeypatch):
    """Scripts for Hugging Face's Trainer call ``trainer.evaluate()`` after ``trainer.train()``."""
    stub(monkeypatch, "accelerate")
    stub(monkeypatch, "accelerate.utils", broadcast_object_list=lambda asked, from_process: None)
    names = ("TrainerControl", "TrainerState", "TrainingArguments")
    stub(monkeypatch, "transformers", TrainerCallback=object, **dict.fromkeys(names, object))
    stub(monkeypatch, "transformers.trainer_utils", has_length=lambda data: True)
    monkeypatch.delitem(sys.modules, "hpo.callbacks.transformers", raising=False)
    callback = importlib.import_module("hpo.callbacks.transformers").TrainerReport()
    monkeypatch.delitem(sys.modules, "hpo.callbacks.transformers")
    (tmp_path / "trial.json").write_text(json.dumps({"report_file": str(tmp_path / "report")}))
    monkeypatch.setenv("HPO_TRIAL", str(tmp_path / "trial.json"))
    for step, name in ((48, "top1"), (96, "top1"), (96, "top1"), (96, "other_top1")):
        state = types.SimpleNamespace(epoch=step / 48, global_step=step)
        callback.on_evaluate(None, state, None, {f"eval_{name}": 0.5, "epoch": step / 48})
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert [{*line} - {"time", "epochs"} for line in lines] == [{"top1"}, {"top1"}, {"other_top1"}]
    assert [line["epochs"] for line in lines] == [1.0, 2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "program", "per_epoch"),
    [
        ("lightning", LIGHTNING, 2),
        ("transformers", TRANSFORMERS, 1),
        ("keras", KERAS, 1),
        pytest.param("lightning", STREAMED_LIGHTNING, 2, id="lightning, streamed"),
        pytest.param("transformers", STREAMED_TRANSFORMERS, 1, id="transformers, streamed"),
    ],
)
def test_a_framework_reports_and_hears_of_the_end(tmp_path: Path, library, program, per_epoch):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'largebatch[frameworks]'")
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    words = [sys.executable, "train.py", "{learning_rate}", "{global_batch_size}"]
    report = {"metrics": {"top1": True}, "timeout_seconds": 200}
    job = TrainingJob(
        workload="program",
        data={"command": words, "train_samples": 1440, "report": report, "stop_seconds": 60.0},
        target=Target("top1", 0.85),
        settings=TrainingSettings(learning_rate=0.3),
        global_batch_size=30,  # half an epoch is a whole number of updates
        seed=0,
        epochs=30,
        search_path=str(tmp_path),
    )
    training, points = begin_training(job, place=ProgramPlace(tmp_path / "trial")), []
    while not training.finished:
        points.append(training.advance())
    assert training.outcome.state == "reached"
    assert [point.epochs for point in points] == pytest.approx(
        [(number + 1) / per_epoch for number in range(len(points))]
    )
    assert points[0].metric < points[-1].metric >= 0.85
    # it was asked to stop and left by itself, long before its 50 epochs
    assert float((tmp_path / "left").read_text()) < 30


@pytest.mark.slow
def test_an_evaluation_after_the_training_is_not_a_report(monkeypatch):
    """As in most scripts: trainer.train(), then trainer.evaluate(); the epochs of reports must increase."""
    callbacks = pytest.importorskip("hpo.callbacks.transformers")
    told = []
    monkeypatch.setattr(
        callbacks,
        "report_metrics",
        lambda found, _, **given: told.append((given["epochs"], *found)),
    )
    callback, control = callbacks.TrainerReport(), SimpleNamespace(should_training_stop=False)
    first, second = {"eval_a_loss": 1.0}, {"eval_b_loss": 1.0}
    for step, metrics in [(5, first), (5, second), (10, first), (10, second), (10, first)]:
        state = SimpleNamespace(epoch=step / 5, global_step=step)
        callback.on_evaluate(None, state, control, {**metrics, "epoch": state.epoch})
    assert told == [(1, "eval_a_loss"), (1, "eval_b_loss"), (2, "eval_a_loss"), (2, "eval_b_loss")]
