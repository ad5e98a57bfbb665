"""Copies on a stream beside the computation: started by the thread that prepares batches, awaited on the device."""

from __future__ import annotations

import threading

import pytest
import torch

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.feed.device_copies import DeviceCopies
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads.resnet.task import ResNetWorkload

CPU = torch.device("cpu")


class Recorded:
    """A stream whose copies happen when their event is awaited: a batch that is used before holds zeros."""

    def __init__(self):
        self.begun, self.awaited, self.threads = 0, [], set()
        self.most_ahead, self.used = 0, 0

    def copy(self, batch):
        self.threads.add(threading.current_thread().name)
        self.begun += 1
        self.most_ahead = max(self.most_ahead, self.begun - self.used)
        self._source = batch
        return tuple(torch.zeros_like(tensor) for tensor in batch)

    def mark(self):
        return self.begun, self._source

    def await_on_device(self, event, batch):
        number, source = event
        self.awaited.append(number)
        self.used = number
        for tensor, value in zip(batch, source, strict=True):
            tensor.copy_(value)


class Slow(ResNetWorkload):
    """Digits whose batches are prepared ahead."""

    def __init__(self, data):
        super().__init__(data)
        self.prefetched_batches = 2


def train(stream=None):
    job = TrainingJob(
        workload="resnet",
        data={},
        target=Target("top1", 1.1),
        settings=TrainingSettings(learning_rate=0.1, normalization_batch_size=32),
        global_batch_size=256,
        seed=0,
        epochs=1,
        evaluations_per_epoch=1,
    )
    training = SynchronousTraining(job, SingleProcessCommunicator(CPU), workload=Slow({}))
    if stream is not None:
        training.replica.copies = DeviceCopies(CPU, training.workload.prepare, stream)
        training.loader._copies = training.replica.copies
    return training.advance(), training.model.state_dict()


@pytest.mark.medium
def test_copies_that_are_awaited_train_the_same_weights_and_run_ahead():
    stream = Recorded()
    (point, weights), (expected, same) = train(stream), train()
    assert point.loss == expected.loss
    assert all(torch.equal(weights[name], value) for name, value in same.items())
    assert stream.awaited == sorted(stream.awaited)
    assert stream.most_ahead >= 2  # one is copied while another is used
    assert all(name.startswith("prefetch") for name in stream.threads)


def test_a_batch_on_the_cpu_is_prepared_by_the_thread_that_loads_it():
    copies, batch = DeviceCopies(CPU, lambda batch: (batch[0] + 1, batch[1])), (torch.ones(2), 0)
    sent = copies.send(batch)
    assert sent.event is None and torch.equal(sent.batch[0], torch.full((2,), 2.0))
    assert copies.receive(sent) is sent.batch


def test_a_batch_on_its_way_is_prepared_once_it_is_there():
    stream, prepared = Recorded(), []

    def prepare(batch):
        prepared.append(batch[0].clone())
        return batch

    copies = DeviceCopies(CPU, prepare, stream)
    sent = copies.send((torch.ones(2),))
    assert not prepared
    copies.receive(sent)
    assert torch.equal(prepared[0], torch.ones(2))
