import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainers
from search_spaces.settings import TrainingSettings
from trainers import DataError, Target, TrainingJob, WorkloadError
from trainers.begin import train
from trainers.distributed.single import SingleProcessCommunicator
from trainers.workloads import load_workload, metrics_of, workload_class

README = Path(trainers.__file__).parent / "workloads" / "README.md"


@pytest.fixture
def spirals(tmp_path):
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(example.splitlines()) <= 50
    (tmp_path / "spirals.py").write_text(example)
    yield str(tmp_path)
    sys.modules.pop("spirals", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def test_the_documented_example_learns(spirals):
    job = TrainingJob(
        workload="spirals:Spirals",
        data={"noise": 0.05},
        target=Target("accuracy", 0.9),
        seed=0,
        settings=TrainingSettings(learning_rate=0.1, normalization_batch_size=16),
        global_batch_size=32,
        epochs=30,
        search_path=spirals,
    )
    outcome = train(job, SingleProcessCommunicator(), lambda point: None)
    assert outcome.state == "reached"


def test_metrics_are_known_without_data(spirals):
    assert metrics_of("resnet") == {"top1": True, "top5": True, "loss": False}
    assert metrics_of("spirals:Spirals", spirals) == {"accuracy": True, "loss": False}
    with pytest.raises(DataError, match="no data option 'sample'; did you mean 'samples'"):
        load_workload("spirals:Spirals", {"sample": 3}, spirals)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnett", "no workload 'resnett'; did you mean 'resnet'.*'package.module:Class'"),
        ("spirals", "there is no workload 'spirals'"),
        (
            "spiral:Spirals",
            "cannot import 'spiral'.*there is no such module in .* or on the Python path",
        ),
        (
            "spirals:Spiral",
            "must name a subclass of trainers.workloads.Workload, but spirals has no Spiral",
        ),
        ("spirals:nn", "must name a subclass"),
        ("trainers.workloads:Workload", "must define __init__, build_model"),
    ],
)
def test_a_workload_that_cannot_be_had_is_named(spirals, name, message):
    with pytest.raises(WorkloadError, match=message):
        load_workload(name, {}, spirals)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_library", "needs 'no_such_library', which is not installed"),
        ("1 / 0", "failed: ZeroDivisionError"),
        (
            "from trainers.workloads.resnet.task import ResNetWorkload\n"
            "class Mine(ResNetWorkload): metrics = {'top1': True}",
            "metrics must contain 'loss': False",
        ),
        (
            "from trainers.workloads.resnet.task import ResNetWorkload\nclass Mine(ResNetWorkload):\n"
            "  def __init__(self, data): pass",
            "train_samples must be a whole number of at least 1, but got None",
        ),
    ],
)
def test_a_broken_module_is_named(tmp_path, monkeypatch, source, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(WorkloadError, match=message):
        load_workload("broken:Mine", {}, str(tmp_path))
    sys.modules.pop("broken", None)


def test_importing_the_package_imports_no_torch():
    command = (
        "import sys, trainers, trainers.job, trainers.report; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_modules_of_one_name_in_two_folders_are_two_modules(tmp_path):
    """A worker runs the studies of many users, who may call their modules alike."""
    text = (
        "import helper\nfrom trainers.workloads.noisy_quadratic.task import NoisyQuadratic\n"
        "class Mine(NoisyQuadratic):\n    said = helper.SAID\n"
    )
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_name_workload.py").write_text(text)
        (tmp_path / name / "helper.py").write_text(f"SAID = {name!r}\n")

    def said(name):
        return workload_class("same_name_workload:Mine", str(tmp_path / name)).said  # type: ignore[attr-defined]

    assert [said(name) for name in ("ann", "bob", "ann", "ann", "bob")] == [
        "ann",
        "bob",
        "ann",
        "ann",
        "bob",
    ]
