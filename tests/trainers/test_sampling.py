import pytest
import torch

from trainers import JobError
from trainers.distributed.sampling import SampleStream, batch_layout
from trainers.numerics.random_numbers import mixed_seed, sample_uniforms


def test_the_mixer_is_splitmix64():
    # the first output of the reference implementation for the seed 1234567 (prng.di.unimi.it/splitmix64.c)
    assert mixed_seed(1234567) == 6457827717110365317 >> 1


def test_each_epoch_is_a_permutation_and_none_is_like_another():
    stream = SampleStream(100, seed=5)
    epochs = [stream.take(100 * epoch, 100)[0] for epoch in range(4)]
    assert all(sorted(order.tolist()) == list(range(100)) for order in epochs)
    assert len({tuple(order.tolist()) for order in epochs}) == 4
    assert not torch.equal(epochs[0], SampleStream(100, seed=6).take(0, 100)[0])


@pytest.mark.parametrize("batch", [7, 30, 100, 256])
def test_batches_cut_one_stream_and_drop_nothing(batch):
    whole = SampleStream(100, seed=5)
    expected = torch.cat([whole.take(epoch * 100, 100)[0] for epoch in range(11)])
    stream = SampleStream(100, seed=5)
    taken = [stream.take(first, batch) for first in range(0, 1000, batch)]
    indices, epochs = torch.cat([each[0] for each in taken]), torch.cat([each[1] for each in taken])
    assert torch.equal(indices, expected[: len(indices)])
    assert torch.equal(epochs, torch.arange(len(indices)) // 100)


def test_going_back_gives_the_same_samples():
    stream = SampleStream(100, seed=5)
    early, _ = stream.take(0, 10)
    stream.take(550, 100)
    assert torch.equal(stream.take(0, 10)[0], early)


@pytest.mark.parametrize("chunk", [None, 8, 24])
@pytest.mark.parametrize(("workers", "micro"), [(1, 64), (1, 16), (2, 16), (4, 8), (1, 24)])
def test_workers_and_micro_batches_cover_the_global_batch_in_order(workers, micro, chunk):
    layout = batch_layout(64, workers, 8, micro)
    layout = layout if chunk is None else layout.in_chunks(chunk)
    cuts = [list(layout.cuts(192, rank)) for rank in range(workers)]
    cut = [each for mine in cuts for each in mine]
    assert [each.first for each in cut] == [
        192 + sum(each.count for each in cut[:index]) for index in range(len(cut))
    ]
    assert sum(each.count for each in cut) == 64
    assert all(each.count % 8 == 0 and each.count <= min(micro, chunk or 64) for each in cut)
    assert len(cut) == workers * layout.micro_batches
    assert (
        sum(each.ends_chunk for each in cut)
        == layout.chunks
        == workers * -(-64 // workers // (chunk or 64))
    )
    assert all(mine[-1].ends_chunk for mine in cuts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (40, 1, 16, 1024),
            "normalization_batch_size 16 and a local batch size of 40 .*choose global_batch_size 32 or 48",
        ),
        ((16, 2, 16, 1024), "choose global_batch_size 32,"),
        ((9, 2, 1, 1024), "2 workers and global_batch_size 9; the nearest valid sizes are 8 or 10"),
        (
            (64, 1, 16, 8),
            "micro_batch_size 8 and normalization_batch_size 16; raise the first to 16",
        ),
    ],
)
def test_a_layout_that_does_not_fit_names_the_nearest_that_does(arguments, message):
    with pytest.raises(JobError, match=message):
        batch_layout(*arguments)


def test_sample_uniforms_depend_on_seed_epoch_and_index_alone():
    indices, epochs = torch.arange(50), torch.arange(50) // 25
    together = sample_uniforms(3, epochs, indices, 4)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sample_uniforms(3, epochs[order], indices[order], 4), together[order])
    assert torch.equal(sample_uniforms(3, epochs[7:9], indices[7:9], 4), together[7:9])
    for other in (
        sample_uniforms(4, epochs, indices, 4),
        sample_uniforms(3, epochs + 1, indices, 4),
    ):
        assert not (other == together).any()


def test_sample_uniforms_are_uniform_and_uncorrelated():
    draws = sample_uniforms(3, torch.zeros(20000, dtype=torch.int64), torch.arange(20000), 3)
    assert draws.min() >= 0 and draws.max() < 1
    shares = torch.histc(draws.float(), bins=10, min=0, max=1) / draws.numel()
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=0.005, rtol=0)
    correlations = torch.corrcoef(draws.T) - torch.eye(3)
    assert correlations.abs().max() < 0.03
    assert torch.corrcoef(torch.stack([draws[:-1, 0], draws[1:, 0]]))[0, 1].abs() < 0.03
