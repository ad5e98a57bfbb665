"""Shampoo: a second-order method with Kronecker factors (Gupta, Koren and Singer, arXiv:1802.09568, algorithm 2).

For a gradient g of order n and each of its preconditioned dimensions i, where mat_i(g) is the matrix whose rows run
along dimension i:

    H_i = beta2 * H_i + (1 - beta2) * mat_i(g) mat_i(g)^T                   every update
    P_i = (H_i + ridge * largest eigenvalue * I)^(-1 / 2k)                  every ``preconditioner_interval`` updates
    s   = g times P_i along every i                                         k dimensions are preconditioned
    d   = ||g|| / ||s|| * s + weight_decay * w
    v   = momentum * v + d,  w = w - rate * v           the rate outside (Nesterov: w - rate * (d + momentum * v))

The ridge is ``epsilon``, but at least the rounding error of H_i (rows times the relative precision of its numbers). The
roots are computed in the first update, and then every ``preconditioner_interval`` updates. A skipped update (whose
gradient overflowed) counts toward this interval, and roots that were due in it are computed in the next update.

Four points follow Anil et al. (arXiv:2002.09018): a moving average instead of a sum, a ridge relative to the largest
eigenvalue, roots in float64 that are reused between intervals, and grafting. Grafting takes the direction from Shampoo
and the step size of each tensor from SGD, so that a rate means the same as with SGD and the scale of H_i does not
matter.

Dimensions with size 1 or a size above ``preconditioner_size_limit`` are not preconditioned (P_i = I). Biases and
normalization parameters follow SGD unless ``adapt_norm_and_bias`` is set. A tensor with ||s|| = 0 is not moved by its
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.momentum import move_outside_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup
from trainers.optimizers.trust_ratio import tensor_norms


class ShampooRule(GroupOptimizer):
    """Shampoo grafted onto SGD for the adapted parameters, SGD for the others.

    When roots are due, the host waits for the device, because the decomposition reports whether it converged; the host
    then also checks whether the update is skipped.
    """

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        super().__init__(groups, settings)
        self._since_roots: int | None = None  # the number of updates, including skipped ones
        self.factors = {
            id(parameter): factors
            for group in groups
            if group.adapted
            for parameter, factors in zip(
                group.parameters, _add_factors(group, settings), strict=True
            )
        }

    @property
    def waits_if_left_out(self) -> bool:  # type: ignore[override]
        """Whether roots are due."""
        since = self._since_roots
        return since is None or since >= self.settings.preconditioner_interval

    def step(
        self,
        learning_rate: float | Tensor,
        epochs: float | Tensor = 0.0,
        left_out: Tensor | None = None,
    ) -> None:
        """Update every parameter from its gradient; see :class:`~trainers.optimizers.optimizer.Optimizer`."""
        before, due = self.updates, self.waits_if_left_out
        super().step(learning_rate, epochs, left_out)
        if due and self.updates > before:
            self._since_roots = 0
        if self._since_roots is not None:
            self._since_roots += 1

    def go_on_after(self, updates: int) -> None:
        """Count ``updates`` as done."""
        super().go_on_after(updates)
        interval = self.settings.preconditioner_interval
        self._since_roots = (updates - 1) % interval + 1 if updates else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the number of updates since the roots were computed."""
        return {**super().state_dict(), "since_roots": self._since_roots}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        super().load_state_dict(state)
        self._since_roots = state.get("since_roots", self._since_roots)

    def _changed(self) -> list[Tensor]:
        statistics = [each for factors in self.factors.values() for each in factors.statistics]
        return super()._changed() + statistics

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        gradients = batch.gradients()
        if batch.adapted:
            gradients = self._directions(batch, gradients)
        move_outside_(
            batch,
            gradients,
            learning_rate,
            self.settings.momentum,
            nesterov=self.settings.nesterov,
            weight_decay=batch.weight_decay,
        )

    def state_of(self, group: ParameterGroup, index: int) -> dict[str, Tensor]:
        """Return the momentum and, for an adapted parameter, the H and P of each dimension."""
        state, factors = (
            super().state_of(group, index),
            self.factors.get(id(group.parameters[index])),
        )
        if factors is not None:
            for dimension, statistic, root in zip(
                factors.dimensions, factors.statistics, factors.roots, strict=True
            ):
                state |= {f"statistics_{dimension}": statistic, f"root_{dimension}": root}
        return state

    def _directions(self, batch: ParameterBatch, gradients: list[Tensor]) -> list[Tensor]:
        directions = batch.temporaries()
        for parameter, flat_gradient, direction in zip(
            batch.shaped, gradients, directions, strict=True
        ):
            factors = self.factors[id(parameter)]
            gradient = flat_gradient.as_strided(parameter.shape, parameter.stride())
            factors.observe(gradient, self.settings.beta2)
            if self.waits_if_left_out:
                factors.take_roots(self.settings.epsilon)
            direction.as_strided(parameter.shape, parameter.stride()).copy_(
                factors.precondition(gradient)
            )
        gradient_norms, norms_of_directions = tensor_norms(gradients, directions)
        grafts = torch.where(norms_of_directions > 0, gradient_norms / norms_of_directions, 1.0)
        torch._foreach_mul_(directions, list(grafts.unbind()))
        return directions


class KroneckerFactors:
    """The Kronecker factors of one tensor: H and its root P for each preconditioned dimension."""

    def __init__(self, parameter: Tensor, size_limit: int) -> None:
        self.dimensions = [
            dimension for dimension, size in enumerate(parameter.shape) if 1 < size <= size_limit
        ]
        self.statistics = [parameter.new_zeros(size, size) for size in self._sizes(parameter)]
        self.roots = [
            torch.eye(size, dtype=parameter.dtype, device=parameter.device)
            for size in self._sizes(parameter)
        ]

    def _sizes(self, parameter: Tensor) -> list[int]:
        return [parameter.shape[dimension] for dimension in self.dimensions]

    def observe(self, gradient: Tensor, beta2: float) -> None:
        """Set ``H = beta2 * H + (1 - beta2) * G G^T`` for each dimension, where G is the gradient with that dimension
        as rows.

        ``gradient`` has the parameter's shape; the H of a dimension with n entries has shape ``(n, n)``.
        """
        for dimension, statistic in zip(self.dimensions, self.statistics, strict=True):
            rows = (
                gradient.movedim(dimension, 0).flatten(1)
                if gradient.ndim > 1
                else gradient.unsqueeze(1)
            )
            statistic.addmm_(rows, rows.T, beta=beta2, alpha=1 - beta2)

    def take_roots(self, epsilon: float) -> None:
        """Compute P from the eigenvalues of H, in float64; P is the identity while H is zero, and NaN if H is not
        finite.
        """
        for statistic, root in zip(self.statistics, self.roots, strict=True):
            values, vectors = eigen_decomposition(statistic)
            ridge = max(epsilon, len(values) * torch.finfo(statistic.dtype).eps)
            values = values.clamp(min=0) + ridge * values[-1]
            values = torch.where(values[-1] > 0, values, 1.0)
            root.copy_((vectors * values ** (-0.5 / len(self.dimensions))) @ vectors.T)

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the gradient times P along every preconditioned dimension; both have the parameter's shape."""
        for dimension, root in zip(self.dimensions, self.roots, strict=True):
            gradient = torch.tensordot(gradient, root, ([dimension], [0])).movedim(-1, dimension)
        return gradient


def eigen_decomposition(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ascending eigenvalues, ``(n,)``, and the eigenvectors of a symmetric matrix ``(n, n)``, in float64.

    A matrix that is not finite, as in a run that diverges, gives NaN, so that the weights show the divergence as with
    every other rule; the decomposition itself would raise an error.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix.double())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # the values are looked at only now, because looking waits for the device
        if matrix.isfinite().all():
            raise
        values = matrix.new_full((len(matrix),), math.nan, dtype=torch.float64)
        vectors = torch.full_like(matrix, math.nan, dtype=torch.float64)
    return values, vectors


def _add_factors(group: ParameterGroup, settings: TrainingSettings) -> list[KroneckerFactors]:
    factors = [
        KroneckerFactors(parameter, settings.preconditioner_size_limit)
        for parameter in group.parameters
    ]
    group.states["statistics"] = [tensor for one in factors for tensor in one.statistics]
    group.states["roots"] = [tensor for one in factors for tensor in one.roots]
    return factors
