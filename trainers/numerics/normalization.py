"""Ghost batch norm: statistics per group of consecutive samples, at any batch size and number of workers.

The method is from Hoffer et al. (arXiv:1705.08741). Goyal et al. (arXiv:1706.02677, section 2.3) normalize over the 32
samples of one worker, and MLPerf's bn_span is the same number. The group size is part of the loss, so a training run
with a fixed group size does not depend on the number of workers.

The residual sum and the ReLU that follow in most networks can be left to the normalization (:func:`norm_relu`). On a
CPU the three then form one operation of the graph, which writes every group directly into the result without memory for
intermediate values. Forward and backward, it takes 0.77 to 0.90 times as long as the separate operations if a tensor
has at least :data:`FUSED_ELEMENTS` elements and there is a shortcut or more than one group
(``benchmarks/ghost_batch_norm.py``). In all other cases the separate operations are computed: they are faster for
smaller tensors, ``torch.compile`` fuses them by itself, and nothing else has been measured on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainers.errors import JobError

FUSED_ELEMENTS = 2**18
"""The input size, in elements, from which the fused operation is used on a CPU."""


class GhostBatchNorm(nn.Module):
    """Batch normalization of ``(samples, features, ...)`` over groups of ``group_size`` consecutive samples.

    For the running statistics, the mean over all groups of an update (collected over its micro batches) enters an
    exponential moving average once per update, with a decay of ``momentum`` for each group of the global batch. The
    average thus spans the same number of samples at any batch size. With one group per update this is the usual
    momentum of 0.9. With many groups, the average becomes the last batch's statistics, as in Akiba et al.
    (arXiv:1711.04325), so that evaluation does not lag behind the weights when there are few updates. The average
    starts at zero and is divided by its own weight when it is used, so it is unbiased from the first update on. It is
    linear in the groups, so the mean of several workers' averages is the average over all their groups.
    """

    running_mean: Tensor
    running_var: Tensor
    running_weight: Tensor
    update_mean: Tensor
    update_var: Tensor
    update_weight: Tensor
    update_groups: Tensor | None

    def __init__(
        self, features: int, group_size: int, *, epsilon: float = 1e-5, momentum: float = 0.9
    ) -> None:
        super().__init__()
        self.group_size, self.epsilon, self.momentum = group_size, epsilon, momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.zeros(features))
        self.register_buffer("running_weight", torch.zeros(()))
        self.register_buffer("update_mean", torch.zeros(features), persistent=False)
        self.register_buffer("update_var", torch.zeros(features), persistent=False)
        self.register_buffer("update_weight", torch.ones(()), persistent=False)
        self.register_buffer("update_groups", None, persistent=False)
        self.groups = 0
        self.may_fuse = True

    def count_on_device(self) -> None:
        """Count the groups of an update in a tensor, because a Python number would cause a recompilation per value."""
        self.update_groups = torch.zeros_like(self.update_weight)

    def begin_update(self) -> None:
        """Mark the next group as the first of an update."""
        self.groups = 0
        if self.update_groups is not None:
            self.update_groups.zero_()

    def forward(self, x: Tensor, add: Tensor | None = None, *, relu: bool = False) -> Tensor:
        """Normalize ``(samples, features, ...)`` by group statistics in training and running statistics in evaluation.

        Then add ``add``, which has the same shape, and apply the ReLU, if requested. Raises :class:`JobError` for a
        training batch that is not a whole number of groups.
        """
        if self.training and self._fuses(x, add):
            self._check_whole_groups(x)
            first, self.groups = self.groups, self.groups + len(x) // self.group_size
            y: Tensor = _FusedGroups.apply(  # type: ignore[no-untyped-call]
                x, add, self.weight, self.bias, self.update_mean, self.update_var,
                self.group_size, first, self.epsilon, relu,
            )  # fmt: skip
            return y
        y = self._normalized(x)
        if add is not None:
            y = y + add
        return F.relu(y, inplace=True) if relu else y

    def _fuses(self, x: Tensor, add: Tensor | None) -> bool:
        return (
            self.may_fuse
            and self.update_groups is None
            and x.numel() >= FUSED_ELEMENTS
            and (add is not None or len(x) > self.group_size)
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and (add is None or (add.dtype == x.dtype and add.shape == x.shape))
            and not torch.compiler.is_compiling()
        )

    def _normalized(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._with_running_statistics(x)
        self._check_whole_groups(x)
        if len(x) == self.group_size:
            return self._normalize(x)
        groups = torch.split(x, self.group_size)
        return torch.cat([self._normalize(group) for group in groups])

    def _check_whole_groups(self, x: Tensor) -> None:
        if len(x) % self.group_size:
            raise JobError(
                "a training batch must be a whole number of normalization groups, but got "
                f"{len(x)} samples and normalization_batch_size {self.group_size}"
            )

    def _normalize(self, group: Tensor) -> Tensor:
        if self.update_groups is not None:
            return self._normalize_counting(group, self.update_groups)
        # a weight of 1/k for the k-th group makes PyTorch's own running statistics the mean over the groups
        self.groups += 1
        return F.batch_norm(
            group,
            self.update_mean,
            self.update_var,
            self.weight,
            self.bias,
            True,
            1 / self.groups,
            self.epsilon,
        )

    def _normalize_counting(self, group: Tensor, groups: Tensor) -> Tensor:
        mean, variance = torch.zeros_like(self.update_mean), torch.zeros_like(self.update_var)
        y = F.batch_norm(group, mean, variance, self.weight, self.bias, True, 1.0, self.epsilon)
        groups += 1
        with torch.no_grad():
            self.update_mean.lerp_(mean, 1 / groups)
            self.update_var.lerp_(variance, 1 / groups)
        return y

    def _with_running_statistics(self, x: Tensor) -> Tensor:
        # before the first update there is nothing to divide by, and the input counts as normalized
        seen = self.running_weight > 0
        weight = torch.where(seen, self.running_weight, 1.0)
        mean, variance = (
            self.running_mean / weight,
            torch.where(seen, self.running_var / weight, 1.0),
        )
        return F.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.epsilon)


class GhostBatchNormReLU(GhostBatchNorm):
    """Ghost batch norm followed by a ReLU."""

    def forward(self, x: Tensor, add: Tensor | None = None, *, relu: bool = True) -> Tensor:
        """Return ``relu(normalized x + add)``."""
        return super().forward(x, add, relu=relu)


def norm_relu(norm: nn.Module, x: Tensor, add: Tensor | None = None) -> Tensor:
    """Return ``relu(norm(x) + add)`` for any normalization; a :class:`GhostBatchNorm` computes it in one operation."""
    if isinstance(norm, GhostBatchNorm):
        return norm(x, add, relu=True)  # type: ignore[no-any-return]
    y = norm(x)
    return F.relu(y if add is None else y + add)


class _FusedGroups(torch.autograd.Function):
    """Batch norm of each group and the operations after it: y = relu(norm(x) + add), with optional ``add`` and ReLU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        add: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        update_mean: Tensor,
        update_var: Tensor,
        group_size: int,
        groups_before: int,
        epsilon: float,
        relu: bool,
    ) -> Tensor:
        """Save ``x``, the statistics of the groups and, for the ReLU, ``y``."""
        y = torch.empty_like(x)
        means, inverses = (x.new_empty(len(x) // group_size, x.shape[1]) for _ in range(2))
        parts = zip(
            torch.split(x, group_size),
            torch.split(y, group_size),
            means.unbind(),
            inverses.unbind(),
            strict=True,
        )
        for number, (group, into, mean, inverse) in enumerate(parts, groups_before + 1):
            torch.ops.aten.native_batch_norm.out(
                group, weight, bias, update_mean, update_var, True, 1 / number, epsilon,
                out=into, save_mean=mean, save_invstd=inverse,
            )  # fmt: skip
        if add is not None:
            y.add_(add)
        if relu:
            y.relu_()
        ctx.save_for_backward(x, weight, y if relu else None, means, inverses)
        ctx.group_size, ctx.epsilon, ctx.adds = group_size, epsilon, add is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ``x``, ``add``, ``weight`` and ``bias``."""
        x, weight, y, means, inverses = ctx.saved_tensors
        if y is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        parts = zip(
            torch.split(x, ctx.group_size),
            torch.split(gradient, ctx.group_size),
            means.unbind(),
            inverses.unbind(),
            strict=True,
        )
        found = [
            torch.ops.aten.native_batch_norm_backward(
                of_group, group, weight, None, None, mean, inverse, True, ctx.epsilon, [True] * 3
            )
            for group, of_group, mean, inverse in parts
        ]
        if len(found) == 1:
            of_x, of_weight, of_bias = found[0]
        else:
            of_x = torch.cat([each[0] for each in found])
            of_weight, of_bias = (torch.stack([each[at] for each in found]).sum(0) for at in (1, 2))
        return of_x, gradient if ctx.adds else None, of_weight, of_bias, *[None] * 6


def ghost_batch_norms(model: nn.Module) -> list[GhostBatchNorm]:
    """Return all ghost batch norms of a model."""
    return [module for module in model.modules() if isinstance(module, GhostBatchNorm)]


def common_group_size(norms: Sequence[GhostBatchNorm]) -> int:
    """Return the layers' group size in samples, or 1 without layers; raise :class:`JobError` if group sizes differ."""
    sizes = {norm.group_size for norm in norms}
    if len(sizes) > 1:
        raise JobError(
            "all GhostBatchNorm layers of a model must share one group size, but got "
            f"{sorted(sizes)}"
        )
    return sizes.pop() if sizes else 1


@torch.no_grad()
def update_running_statistics(norms: Sequence[GhostBatchNorm], groups: int) -> None:
    """Update the running statistics of all layers after an update of ``groups`` groups over all workers."""
    if not norms:
        return
    running = [
        each
        for norm in norms
        for each in (norm.running_mean, norm.running_var, norm.running_weight)
    ]
    seen = [
        each for norm in norms for each in (norm.update_mean, norm.update_var, norm.update_weight)
    ]
    torch._foreach_lerp_(running, seen, 1 - norms[0].momentum ** groups)
    for norm in norms:
        norm.begin_update()


def statistics_depend_on_micro_batches(model: nn.Module) -> bool:
    """Return whether a model has another kind of batch norm, whose results depend on the micro batch size."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def persistent_statistics(model: nn.Module) -> list[Tensor]:
    """Return the floating-point buffers of a checkpoint, of any shape; workers average them before an evaluation."""
    parameters = {id(parameter) for parameter in model.parameters()}
    return [
        tensor
        for tensor in model.state_dict(keep_vars=True).values()
        if id(tensor) not in parameters and tensor.is_floating_point()
    ]
