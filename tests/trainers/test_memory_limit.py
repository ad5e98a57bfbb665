"""The micro batch that fits in memory, with an allocator that holds a given number of samples."""

import pytest
import torch

from search_spaces.settings import TrainingSettings
from tests.trainers.small_network import Small
from trainers import JobError, Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import memory_limit, synchronous
from trainers.loop.synchronous import SynchronousTraining

CPU = torch.device("cpu")


class Bounded(Small):
    """Runs out of memory where a gradient is wanted of more samples than ``holds``."""

    holds: int = 64
    tried: list[int]

    def loss(self, model, batch, settings):
        samples = len(batch[0])
        self.tried.append(samples)
        if samples > self.holds:
            raise torch.OutOfMemoryError("the fake's memory is full")
        return super().loss(model, batch, settings)


def training(monkeypatch=None, micro_batch_size=None, holds=64, group=8, **settings):
    if monkeypatch is not None:  # the search, as on a GPU
        monkeypatch.setattr(synchronous, "limited_by_memory", memory_limit.with_fitting_micro_batch)
    workload = Bounded({})
    workload.holds, workload.tried = holds, []
    job = TrainingJob(
        workload="small",
        data={},
        target=Target("top1", 2.0),
        settings=TrainingSettings(normalization_batch_size=group, **settings),
        global_batch_size=128,
        seed=0,
        epochs=0.5,
        evaluations_per_epoch=2,
        micro_batch_size=micro_batch_size,
    )
    return SynchronousTraining(job, SingleProcessCommunicator(CPU), workload=workload)


@pytest.mark.parametrize(("holds", "found"), [(1000, None), (127, 64), (50, 32), (8, 8)])
def test_micro_batches_are_halved_until_they_fit(monkeypatch, holds, found):
    made = training(monkeypatch, holds=holds)
    assert made.job.micro_batch_size == found
    assert made.workload.tried == [size for size in (128, 64, 32, 16, 8) if size >= (found or 128)]
    assert made.loader.layout(1).micro_batch_size == (found or 128)
    assert all(parameter.grad is None for parameter in made.replica.parameters)


def test_a_search_leaves_the_training_as_it_was(monkeypatch):
    generator = torch.random.get_rng_state()
    found = training(monkeypatch, holds=32)
    assert torch.equal(torch.random.get_rng_state(), generator)
    monkeypatch.undo()
    told = training(micro_batch_size=32)
    for each in (found, told):
        each.advance()
    for mine, theirs in zip(
        found.model.state_dict().values(), told.model.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_the_micro_batch_of_a_job_and_the_processor_are_not_tried():
    assert training(micro_batch_size=16).workload.tried == []
    assert training().workload.tried == []


def test_a_group_that_does_not_fit_is_an_error_with_a_way_out(monkeypatch):
    with pytest.raises(JobError, match="even one normalization group of 16 samples does not"):
        training(monkeypatch, holds=8, group=16)


def test_another_batch_norm_is_left_alone(monkeypatch):
    class Plain(Bounded):
        def build_model(self, settings):
            return torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10)
            ).double()

    monkeypatch.setitem(globals(), "Bounded", Plain)
    made = training(monkeypatch, holds=32)
    assert made.workload.tried == []
    assert made.job.micro_batch_size is None
