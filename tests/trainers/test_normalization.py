import pytest
import torch
from torch import nn

from trainers import JobError
from trainers.numerics import normalization
from trainers.numerics.normalization import (
    GhostBatchNorm,
    common_group_size,
    ghost_batch_norms,
    norm_relu,
    persistent_statistics,
    update_running_statistics,
)
from trainers.workloads.resnet.model import build_resnet
from trainers.workloads.segmentation.deeplab import DeepLab
from trainers.workloads.segmentation.tiramisu import Tiramisu


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
    update_running_statistics([norm], groups)


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


def fused_operations(output):
    """How many fused operations an output's graph has."""
    seen, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum("FusedGroups" in type(node).__name__ for node in seen)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(24, 3, 4, 5), (24, 3)])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_the_fused_operation_is_the_composition(monkeypatch, adds, relu, shape, layout):
    def computed(least_elements):
        """Output, statistics and gradients of two micro batches of three groups and one of one group."""
        monkeypatch.setattr(normalization, "FUSED_ELEMENTS", least_elements)
        generator = torch.Generator().manual_seed(0)

        def drawn(*size):
            values = torch.randn(size, generator=generator, dtype=torch.float64)
            last = layout == "channels last" and len(size) == 4
            return values.to(
                memory_format=torch.channels_last if last else torch.contiguous_format
            ).requires_grad_()

        norm = GhostBatchNorm(3, 8).double()
        with torch.no_grad():
            norm.weight.copy_(drawn(3))
            norm.bias.copy_(drawn(3))
        results = []
        for samples in (24, 24, 8):
            x, shortcut = drawn(samples, *shape[1:]), drawn(samples, *shape[1:])
            y = norm(x, shortcut if adds else None, relu=relu)
            assert fused_operations(y) == (least_elements == 0 and (adds or samples > 8))
            (y * drawn(*y.shape)).sum().backward()
            results += [y, x.grad, *([shortcut.grad] if adds else [])]
        results += [norm.weight.grad, norm.bias.grad]
        update_running_statistics([norm], 7)
        results += [norm.running_mean, norm.running_var, norm.eval()(drawn(*shape))]
        return results

    for fused, composed in zip(computed(0), computed(10**9), strict=True):
        torch.testing.assert_close(fused, composed, rtol=1e-12, atol=1e-12)
        assert fused.stride() == composed.stride()


def norm_of_pairs(features):
    return GhostBatchNorm(features, 2)


MODELS = {
    "resnet8": lambda: build_resnet("resnet8", 3, 5, 4, 2),
    "resnet50": lambda: build_resnet("resnet50", 3, 5, 2, 2),
    "tiramisu": lambda: Tiramisu("tiramisu_small", 3, 3, 2, norm_of_pairs),
    "deeplab": lambda: DeepLab("deeplabv3plus_small", 3, 3, 4, norm_of_pairs),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_the_fused_operation_are_those_without(monkeypatch, name):
    def computed(least_elements):
        monkeypatch.setattr(normalization, "FUSED_ELEMENTS", least_elements)
        torch.manual_seed(0)
        model = MODELS[name]().double()
        images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
        output = model(images)
        count = fused_operations(output)
        output.square().mean().backward()
        update_running_statistics(ghost_batch_norms(model), 2)
        gradients = [parameter.grad for parameter in model.parameters()]
        return count, [output.detach(), *gradients, *persistent_statistics(model)]

    (count, fused), (none, composed) = computed(0), computed(10**9)
    assert none == 0
    torch.manual_seed(0)
    # every normalization is one, with its ReLU and its shortcut
    assert count == len(ghost_batch_norms(MODELS[name]()))
    for mine, theirs in zip(fused, composed, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_compiler_takes_the_normalization_whole():
    plain, compiled = GhostBatchNorm(3, 8), GhostBatchNorm(3, 8)
    function = torch.compile(
        lambda x, add: norm_relu(compiled, x, add), backend="aot_eager", fullgraph=True
    )
    for seed in range(2):
        x, add = images(24, seed), images(24, seed + 5)
        torch.testing.assert_close(function(x, add), norm_relu(plain, x, add))
        for norm in (plain, compiled):
            update_running_statistics([norm], 3)
    torch.testing.assert_close(compiled.running_mean, plain.running_mean)
    torch.testing.assert_close(compiled.running_var, plain.running_var)


def test_an_incomplete_group_is_an_error_of_the_fused_operation_too(monkeypatch):
    monkeypatch.setattr(normalization, "FUSED_ELEMENTS", 0)
    with pytest.raises(JobError, match="got 12 samples and normalization_batch_size 8"):
        GhostBatchNorm(3, 8)(images(12))
