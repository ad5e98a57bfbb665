import pytest
import torch
from torch import nn

from trainers import JobError
from trainers.numerics.normalization import (
    GhostBatchNorm,
    common_group_size,
    end_update,
    ghost_batch_norms,
    persistent_statistics,
)


def images(samples, seed=0):
    return torch.randn(samples, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 2 + 1


def test_each_group_is_batch_norm_of_its_own_samples_forward_and_backward():
    ghost, plain = GhostBatchNorm(3, 8), nn.BatchNorm2d(3)
    with torch.no_grad():
        for parameter in (*ghost.parameters(), *plain.parameters()):
            parameter.copy_(torch.tensor([0.5, 1.5, 2.5]))
    one, other = images(24).requires_grad_(), images(24).requires_grad_()
    mine = ghost(one)
    theirs = torch.cat([plain(group) for group in other.split(8)])
    torch.testing.assert_close(mine, theirs)
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(9))
    (mine * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ghost.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)


def update(norm, samples, micro_batch, groups):
    for chunk in samples.split(micro_batch):
        norm(chunk)
    end_update([norm], groups)


@pytest.mark.parametrize("micro_batch", [8, 16, 32])
def test_running_statistics_are_the_unbiased_average_of_the_group_means(micro_batch):
    norm = GhostBatchNorm(3, 8)
    mean, variance, weight = torch.zeros(3), torch.zeros(3), 0.0
    for step in range(3):
        batch = images(32, seed=step)
        update(norm, batch, micro_batch, groups=4)
        groups = batch.view(4, 8, 3, 4, 4)
        keep = 0.9**4
        mean = keep * mean + (1 - keep) * groups.mean((1, 3, 4)).mean(0)
        variance = keep * variance + (1 - keep) * groups.transpose(1, 2).reshape(4, 3, -1).var(
            2
        ).mean(0)
        weight = keep * weight + (1 - keep)
    norm.eval()
    batch = images(5, seed=99)
    expected = (batch - (mean / weight).view(3, 1, 1)) / (
        (variance / weight).view(3, 1, 1) + 1e-5
    ).sqrt()
    torch.testing.assert_close(norm(batch), expected, rtol=1e-4, atol=1e-5)


def test_the_first_update_is_used_undiluted():
    norm = GhostBatchNorm(3, 16)
    batch = images(16)
    update(norm, batch, 16, groups=1)
    norm.eval()
    normalized = norm(batch)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        normalized.transpose(0, 1).flatten(1).std(1), torch.ones(3), atol=1e-4, rtol=0
    )


def test_one_group_per_update_forgets_by_a_tenth_and_many_forget_all():
    slow, fast = GhostBatchNorm(3, 8), GhostBatchNorm(3, 8)
    for groups, norm in ((1, slow), (1000, fast)):
        update(norm, torch.zeros(8, 3, 4, 4), 8, groups)
        update(norm, torch.ones(8, 3, 4, 4), 8, groups)
    torch.testing.assert_close(
        slow.running_mean / slow.running_weight, torch.full((3,), 0.1 / 0.19)
    )
    torch.testing.assert_close(fast.running_mean / fast.running_weight, torch.ones(3))


def test_the_mean_over_workers_is_the_average_over_all_their_groups():
    alone, workers = GhostBatchNorm(3, 8), [GhostBatchNorm(3, 8) for _ in range(2)]
    for step in range(4):
        batch = images(32, seed=step)
        update(alone, batch, 32, groups=4)
        for worker, chunk in zip(workers, batch.split(16), strict=True):
            update(worker, chunk, 8, groups=4)
    for name in ("running_mean", "running_var", "running_weight"):
        mean = torch.stack([getattr(worker, name) for worker in workers]).mean(0)
        torch.testing.assert_close(mean, getattr(alone, name))


def test_before_any_update_the_input_is_taken_as_normalized():
    norm = GhostBatchNorm(3, 8).eval()
    torch.testing.assert_close(norm(images(4)), images(4) / (1 + 1e-5) ** 0.5)


def test_it_normalizes_vectors_too():
    normalized = GhostBatchNorm(5, 4)(torch.randn(8, 5))
    torch.testing.assert_close(
        normalized.view(2, 4, 5).mean(1), torch.zeros(2, 5), atol=1e-6, rtol=0
    )


def test_incomplete_groups_and_mixed_sizes_are_errors():
    with pytest.raises(JobError, match="got 12 samples and normalization_batch_size 8"):
        GhostBatchNorm(3, 8)(images(12))
    with pytest.raises(JobError, match=r"\[4, 8\]"):
        common_group_size([GhostBatchNorm(3, 8), GhostBatchNorm(3, 4)])
    assert common_group_size([]) == 1


def test_statistics_of_a_model_are_found_whatever_the_layer():
    model = nn.Sequential(GhostBatchNorm(3, 8), nn.BatchNorm2d(3), nn.Linear(2, 2))
    assert len(ghost_batch_norms(model)) == 1
    assert [tuple(tensor.shape) for tensor in persistent_statistics(model)] == [
        (3,),
        (3,),
        (),
        (3,),
        (3,),
    ]
    assert persistent_statistics(model)[0] is model[0].running_mean
