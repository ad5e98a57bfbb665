"""Samples from a stream: each once per epoch, in a reproducible order, on any number of workers."""

from __future__ import annotations

import contextlib
import io
import itertools
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.settings import TrainingSettings
from tests.trainers.image_samples import jpeg, scene
from trainers import DataError, Target, TrainingJob, WorkloadError
from trainers.distributed.single import SingleProcessCommunicator
from trainers.feed.streams import SampleQueue
from trainers.feed.tar_shards import TarShards
from trainers.loop.replica import Replica, evaluate_replica
from trainers.loop.streamed import training_queue
from trainers.loop.synchronous import SynchronousTraining
from trainers.speed import seconds_per_sample
from trainers.workloads import Part, StreamWorkload, load_model_workload, load_workload
from trainers.workloads.host_work import host_seconds_per_sample
from trainers.workloads.resnet.task import ResNetWorkload

EXAMPLES = str(Path(__file__).parents[2] / "examples" / "own_workload")


def job(workload, data, **changes):
    values = {
        "workload": workload,
        "data": data,
        "target": Target("loss", 1e-9, higher_is_better=False),
        "settings": TrainingSettings(learning_rate=0.1, normalization_batch_size=4),
        "global_batch_size": 32,
        "seed": 3,
        "epochs": 3,
        "evaluations_per_epoch": 1,
        "search_path": EXAMPLES,
        **changes,
    }
    return TrainingJob(**values)


def begun(chosen):
    return SynchronousTraining(chosen, SingleProcessCommunicator(torch.device("cpu")))


def same(first, second):
    return all(torch.equal(second[name], value) for name, value in first.items())


class Numbers(StreamWorkload):
    """The numbers from 0 on, in batches of ``sizes``; ``given`` of them to worker 0, as many to each where even."""

    metrics = {"loss": False}

    def __init__(self, samples=20, sizes=(7, 3), given=None):
        self.train_samples = self.evaluation_samples = samples
        self.sizes, self.given = sizes, samples if given is None else given

    def training_stream(self, epoch, seed, part):
        numbers = torch.arange(self.given)[part.rank :: part.size] + 1000 * epoch
        sizes = itertools.cycle(self.sizes)
        while len(numbers):
            count = next(sizes)
            yield numbers[:count], {"again": numbers[:count]}
            numbers = numbers[count:]

    def evaluation_stream(self, part):
        return (
            (each, {"again": each})
            for each in torch.arange(self.given)[part.rank :: part.size].split(4)
        )

    def build_model(self, settings):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch, settings): ...

    def score(self, model, batch):
        return {"loss": batch[0].double()}


def test_a_queue_cuts_batches_of_any_size_into_those_asked_for():
    batches = ((torch.arange(at, at + 5), [torch.arange(at, at + 5)]) for at in range(0, 100, 5))
    queue, found = SampleQueue(batches), []
    for count in (1, 3, 1, 5, 12, 2, 6):
        first, (second,) = queue.take(count)
        assert len(first) == count and torch.equal(first, second)
        found += first.tolist()
    queue.skip(11)
    found += [None] * 11
    found += queue.take(3)[0].tolist()
    assert found[30:41] == [None] * 11
    assert found[:30] == list(range(30)) and found[41:] == [41, 42, 43]


@pytest.mark.parametrize("first", [0, 1, 10, 20, 33, 47])
def test_an_epoch_is_the_declared_samples_and_a_resumption_leaves_out_what_was_processed(first):
    whole = training_queue(Numbers(), 0, Part(0, 1), 0).take(80)[0]
    assert whole.tolist() == [1000 * epoch + at for epoch in range(4) for at in range(20)]
    assert torch.equal(
        training_queue(Numbers(), 0, Part(0, 1), first).take(30)[0], whole[first:][:30]
    )


def test_a_worker_with_less_than_its_share_begins_again_and_one_with_more_leaves_it_out():
    declared = Numbers(
        samples=20, given=23
    )  # of 3 workers: 8, 8 and 7; their shares are 6, 7 and 7
    for rank, share in enumerate((6, 7, 7)):
        numbers = training_queue(declared, 0, Part(rank, 3), 0).take(2 * share)[0] % 1000
        assert numbers.tolist() == 2 * list(range(rank, 23, 3))[:share]
    few = Numbers(samples=20, given=10)
    numbers = training_queue(few, 0, Part(1, 2), 0).take(12)[0].tolist()
    assert numbers == [1, 3, 5, 7, 9, 1, 3, 5, 7, 9, 1001, 1003]


@pytest.mark.parametrize(("given", "size"), [(19, 1), (0, 1), (0, 2)])
def test_a_stream_that_ends_before_its_declared_length_is_named(given, size):
    queue = training_queue(Numbers(given=given), 0, Part(0, size), 0)
    with pytest.raises(DataError, match=r"Numbers.training_stream gave \d+ samples .* declares 20"):
        queue.take(20)


class Counting(SingleProcessCommunicator):
    """Worker ``rank`` of ``size``, whose sums are kept."""

    def __init__(self, rank, size, sums):
        super().__init__(torch.device("cpu"))
        self.rank, self.size, self.sums = rank, size, sums

    def all_reduce_sum_(self, tensors):
        self.sums += [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.copy_(sum(self.sums))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_an_evaluation_counts_every_sample_of_all_workers_once(size):
    workload, sums = Numbers(samples=6), []
    replica = Replica(workload, TrainingSettings(), 0, torch.device("cpu"))
    for rank in range(size - 1):
        with contextlib.suppress(DataError):  # the sums of the first workers are not yet whole
            evaluate_replica(replica, Counting(rank, size, sums), None)
    assert evaluate_replica(replica, Counting(size - 1, size, sums), None) == {"loss": 2.5}


def test_an_evaluation_of_other_than_the_declared_samples_is_named():
    replica = Replica(Numbers(samples=6, given=5), TrainingSettings(), 0, torch.device("cpu"))
    with pytest.raises(DataError, match=r"gave 5 samples .* declares 6"):
        evaluate_replica(replica, SingleProcessCommunicator(torch.device("cpu")), None)


@pytest.mark.medium
def test_a_dataloader_trains_repeatably_and_goes_on_where_it_was():
    chosen = job("streamed:StreamedDigits", {}, target=Target("accuracy", 1.1))
    weights = []
    for _ in range(2):
        training = begun(chosen)
        while not training.finished:
            point = training.advance()
        weights.append(training.model.state_dict())
    assert same(*weights) and point.metric > 0.85
    first, second = begun(chosen), begun(chosen)
    first.advance()
    state = first.state_dict()
    second.load_state_dict(state)
    while not second.finished:
        second.advance()
    assert same(weights[0], second.model.state_dict())
    other = begun(replace(chosen, seed=4))
    other.advance()
    assert not same(first.model.state_dict(), other.model.state_dict())


def test_a_stream_has_no_index_and_no_asynchronous_replicas():
    workload = load_model_workload(job("streamed:StreamedDigits", {}))
    assert workload.streamed
    with pytest.raises(WorkloadError, match="StreamedDigits come as a stream"):
        workload.training_batch(torch.arange(2), torch.zeros(2), 0)
    training = begun(job("streamed:StreamedDigits", {}))
    with pytest.raises(WorkloadError, match="set update_mode to 'synchronous'"):
        training.loader.micro_batches(0, every=2)
    assert 0 < host_seconds_per_sample(workload, 32) < 0.1


def test_the_speed_of_a_streamed_training_is_that_of_a_part_of_it():
    assert 0 < seconds_per_sample(job("streamed:StreamedDigits", {}), 0.01) < 1


def write_shards(folder, shards=4, samples=5, size=(90, 80)):
    """Tar files of JPEGs: ``samples`` in each of ``shards`` for training, half as many for evaluation."""
    generator = np.random.default_rng(0)
    for kind, count in (("train", shards), ("val", max(1, shards // 2))):
        for shard in range(count):
            with tarfile.open(folder / f"images-{kind}-{shard:03}.tar", "w") as archive:
                for index in range(samples):
                    number = (shard * samples + index) % 2
                    for extension, content in (
                        ("jpg", jpeg(scene(generator, *size) // (1 + number))),
                        ("cls", str(number).encode()),
                    ):
                        member = tarfile.TarInfo(f"part/{shard}-{index}.{extension}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
    return {"source": "tar_shards", "path": str(folder), "classes": 2, "image_size": 32}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_sample_of_the_tar_files_comes_once_an_epoch_over_all_workers(tmp_path, workers):
    write_shards(tmp_path, size=(16, 16))
    shards = TarShards(list(tmp_path.glob("*train*")))
    assert shards.count() == 20
    orders = []
    for epoch in (0, 0, 1):
        parts = [
            [sample.name for sample in shards.shuffled(epoch, 5, Part(rank, workers), buffer=3)]
            for rank in range(workers)
        ]
        seen = Counter(itertools.chain.from_iterable(parts))
        assert len(seen) == 20 and set(seen.values()) == {1}
        orders.append(parts)
    assert orders[0] == orders[1] != orders[2]
    evaluated = [
        sample.name for rank in range(workers) for sample in shards.in_order(Part(rank, workers))
    ]
    assert len(evaluated) == len(set(evaluated)) == 20


@pytest.mark.medium
def test_images_of_tar_files_train_a_residual_network_with_any_number_of_threads(tmp_path):
    options = {**write_shards(tmp_path), "model": "resnet8"}
    weights = []
    for threads in (1, 3):
        data = {**options, "decoding_threads": threads}
        training = begun(job("resnet", data, global_batch_size=8, target=Target("top1", 1.1)))
        assert (training.workload.train_samples, training.workload.evaluation_samples) == (20, 10)
        while not training.finished:
            training.advance()
        weights.append(training.model.state_dict())
    assert same(*weights)


def test_images_of_tar_files_are_those_that_were_written(tmp_path):
    options = write_shards(tmp_path, shards=1, size=(32, 32))
    workload = ResNetWorkload({**options, "augment": False, "train_samples": 5})
    (batch,) = workload.evaluation_stream(Part(0, 1))
    assert batch[0].dtype == torch.uint8 and batch[1].tolist() == [0, 1, 0, 1, 0]
    images, _ = workload.prepare(batch)
    assert images.dtype == torch.float32 and abs(float(images.mean())) < 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": None}, "classes must be a whole number"),
        ({"classes": True}, "classes must be a whole number"),
        ({"train_samples": 0}, "train_samples must be a whole number"),
        ({"path": None}, "needs path"),
        ({"path": "/nowhere"}, r"holds no \*train\*.tar"),
    ],
)
def test_bad_options_of_tar_files_are_named(tmp_path, changes, message):
    options = write_shards(tmp_path, shards=1, samples=1, size=(16, 16))
    with pytest.raises(DataError, match=message):
        load_workload("resnet", {**options, **changes})


def test_damaged_and_foreign_tar_files_are_named(tmp_path):
    options = write_shards(tmp_path, shards=1, samples=2, size=(16, 16))
    one = ResNetWorkload({**options, "classes": 2})
    with pytest.raises(DataError, match="1 files for 2 workers"):
        next(iter(one.training_stream(0, 0, Part(0, 2))))
    file = tmp_path / "images-train-000.tar"
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(DataError, match=r"cannot read the tar file .*images-train-000.tar"):
        list(one.training_stream(0, 0, Part(0, 1)))
    with tarfile.open(file, "w") as archive:
        archive.addfile(tarfile.TarInfo("0.txt"))
    with pytest.raises(DataError, match=r"0 must have an image .*members are txt"):
        list(one.training_stream(0, 0, Part(0, 1)))
