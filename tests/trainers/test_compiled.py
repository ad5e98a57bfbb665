"""Trainings compiled by torch.compile: weights and checkpoints equal those of uncompiled ones, and clear refusals."""

import pytest
import torch

from search_spaces.settings import TrainingSettings
from tests.trainers.small_network import Small
from trainers import JobError, Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.fused import FusedTrainings
from trainers.loop.compiled import compiled_model, wanted_compiler
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads.resnet.task import ResNetWorkload

pytestmark = pytest.mark.slow


def training(workload=Small, **settings):
    recipe = {"learning_rate": 0.05, "warmup_epochs": 0.2, "normalization_batch_size": 8}
    job = TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 2.0),
        settings=TrainingSettings(**recipe, **settings),
        global_batch_size=64,
        micro_batch_size=16,
        seed=1,
        epochs=2.0,
        evaluations_per_epoch=1437 / 64 / 6,
    )
    return SynchronousTraining(
        job, SingleProcessCommunicator(torch.device("cpu")), workload=workload(job.data)
    )


@pytest.fixture
def counted(monkeypatch):
    """Counts the graphs that are compiled."""
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    yield graphs
    torch._dynamo.reset()


def assert_same(one, other, **tolerance):
    mine, its = one.model.state_dict(), other.model.state_dict()
    assert list(mine) == list(its)  # no prefix of the compiler's
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, its[name], msg=name, **tolerance)


@pytest.mark.parametrize(
    ("workload", "settings", "tolerance"),
    [
        (Small, {}, 1e-12),
        (Small, {"loss_scaling": "dynamic", "optimizer": "lars", "gradient_lag": 1}, 1e-12),
        (ResNetWorkload, {}, 1e-5),
        (ResNetWorkload, {"precision": "bf16"}, 2e-2),
    ],
)
def test_a_compiled_training_has_the_weights_and_statistics_of_another(
    workload, settings, tolerance, monkeypatch, counted
):
    plain = training(workload, **settings)
    plain.advance()
    monkeypatch.setenv("HPO_COMPILE", "aot_eager")
    compiled_one = training(workload, **settings)
    compiled_one.advance()
    assert_same(compiled_one, plain, rtol=tolerance, atol=tolerance)
    assert counted["unique_graphs"] == 1  # whichever micro batch of an update it is


def test_a_checkpoint_does_not_depend_on_the_compiler(monkeypatch, counted):
    straight, first = training(), training()
    straight.advance()
    straight.advance()
    first.advance()
    monkeypatch.setenv("HPO_COMPILE", "aot_eager")
    second = training()
    second.load_state_dict(first.state_dict())
    second.advance()
    assert counted["unique_graphs"] == 1
    monkeypatch.delenv("HPO_COMPILE")
    third = training()
    third.load_state_dict(second.state_dict())
    assert_same(third, second, rtol=0, atol=0)
    assert_same(third, straight, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning"
)  # of what PyTorch imports
def test_inductor_trains_as_no_compiler_does(monkeypatch, counted):
    plain = training()
    plain.advance()
    monkeypatch.setenv("HPO_COMPILE", "inductor")
    compiled_one = training()
    compiled_one.advance()
    assert counted["unique_graphs"] == 1
    assert_same(compiled_one, plain, rtol=1e-10, atol=1e-10)


def test_where_a_compiler_is_missing_that_is_told(monkeypatch):
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(JobError, match=r"C\+\+ compiler .* leave out --compile"):
        compiled_model(torch.nn.Linear(1, 1), torch.device("cpu"), "inductor")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(JobError, match="Triton for cuda"):
        compiled_model(torch.nn.Linear(1, 1), torch.device("cuda"), "inductor")


def test_a_compiler_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("HPO_COMPILE", "inducter")
    with pytest.raises(JobError, match=r"'inducter'.*inductor"):
        wanted_compiler()


def test_a_fused_training_is_not_compiled(monkeypatch):
    monkeypatch.setenv("HPO_COMPILE", "aot_eager")
    with pytest.raises(JobError, match="must not be compiled"):
        FusedTrainings().add(training())
