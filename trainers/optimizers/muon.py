"""Muon: momentum with orthogonalized matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

For a weight with two or more dimensions, viewed as a matrix (first dimension by all others):

    m = muon_momentum * m + (1 - muon_momentum) * g
    d = (1 - muon_momentum) * g + muon_momentum * m             d = m without ``muon_nesterov``
    o = NewtonSchulz(d), nearly U V^T of d = U S V^T
    w = w - rate * weight_decay * w - rate * scale * o

with ``muon_rate_scaling``

    rms     scale = 0.2 sqrt(max(rows, columns))        an update is as long as AdamW's (arXiv:2502.16982, section 2.2)
    shape   scale = sqrt(max(1, rows / columns))        the author's scaling

Each of the ``muon_iterations`` Newton-Schulz steps is X = a X + (b X X^T + c (X X^T)^2) X with a = 3.4445, b = -4.7750
and c = 2.0315, starting from X = d / ||d||. The steps run in the type of the weights, or in bf16 if the model is
trained in bf16 or fp16, as in the author's code. Matrices with the same shape are batched.

All other parameters (biases, scales, normalizations, embedding tables, and parameters that a workload names as
``embedding``) are updated by AdamW at ``muon_rest_rate`` times the rate.

With several workers, each worker orthogonalizes a share of the matrices, and a sum over all workers distributes the
results, as in the distributed Muon of its author and of Liu et al. (arXiv:2502.16982, section 2.3). Every worker keeps
all of the momentum, so a checkpoint does not depend on the shares. An m x n matrix takes about 2 * 3 * iterations *
min(m, n) operations per element, and the sum sends each element over the network twice. Sharing therefore pays off for
matrices with at least ``SHARED_FROM`` rows and columns; every worker orthogonalizes all other matrices itself.

``torch.optim.Muon`` is the same rule for two-dimensional matrices, in bf16 only and one matrix at a time; tests compare
the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.moments import STATE_NAMES, move_by_moments_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup, add_scaled_
from trainers.optimizers.sharing import computed_by_owners, task_owners

COEFFICIENTS = 3.4445, -4.7750, 2.0315
SMALLEST_NORM = 1e-7
SHARED_FROM = 256
"""The number of rows and columns from which the work on a matrix is shared: 8,000 operations per number sent."""


class MuonRule(GroupOptimizer):
    """Muon for the adapted parameters, AdamW for the others."""

    state_names = ("momentum", *STATE_NAMES)

    def names_of_state(self, group: ParameterGroup) -> tuple[str, ...]:
        """Return the name of one buffer for a matrix, or of two moments for any other parameter."""
        return ("momentum",) if group.adapted else STATE_NAMES

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        super().__init__(groups, settings)
        self._moves: dict[ParameterBatch, list[Tensor]] = {}
        self._found: dict[int, Tensor] = {}

    def begin_update(self, learning_rate: float | Tensor) -> None:  # noqa: ARG002 - of every rule
        """Orthogonalize the matrices that are shared with other workers, in one exchange."""
        workers = self.communicator
        self._found = {}
        if workers is None or workers.size == 1:
            return
        self._moves = {batch: self._moved(batch) for batch in self.batches if batch.adapted}
        shared = [
            (parameter, _matrix(move, parameter))
            for batch, moves in self._moves.items()
            for parameter, move in zip(batch.shaped, moves, strict=True)
            if len(parameter) >= SHARED_FROM and parameter[0].numel() >= SHARED_FROM
        ]
        if not shared:
            return
        matrices = [matrix for _, matrix in shared]
        found = computed_by_owners(
            matrices,
            task_owners([matrix.numel() * min(matrix.shape) for matrix in matrices], workers.size),
            workers,
            lambda index: self._made_orthogonal(matrices[index][None])[0],
        )
        self._found = {
            id(parameter): part for (parameter, _), part in zip(shared, found, strict=True)
        }

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings = self.settings
        if not batch.adapted:
            move_by_moments_(
                batch,
                batch.gradients(),
                settings,
                count=self.count,
                rate=learning_rate * settings.value("muon_rest_rate"),
                weight_decay=batch.weight_decay,
                decoupled=True,
            )
            return
        moves = self._moves.pop(batch, None) or self._moved(batch)
        if batch.weight_decay:
            torch._foreach_mul_(batch.parameters, 1 - learning_rate * batch.weight_decay)
        add_scaled_(batch.parameters, self._orthogonal(batch, moves), -learning_rate)

    def _moved(self, batch: ParameterBatch) -> list[Tensor]:
        """Update the momentum with the gradients; return the matrices to orthogonalize, ``(elements,)`` each."""
        momentum, gradients = self.settings.value("muon_momentum"), batch.gradients()
        buffers = batch.states["momentum"]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        if not self.settings.value("muon_nesterov"):
            return buffers
        return list(torch._foreach_lerp(gradients, buffers, momentum))

    def _made_orthogonal(self, matrices: Tensor) -> Tensor:
        """Return scaled, orthogonalized matrices ``(n, rows, columns)``."""
        settings, (_, rows, columns) = self.settings, matrices.shape
        return orthogonalized(
            matrices, settings.value("muon_iterations"), _iteration_type(settings)
        ).mul_(rate_scale(settings.value("muon_rate_scaling"), rows, columns))

    def _orthogonal(self, batch: ParameterBatch, moves: list[Tensor]) -> list[Tensor]:
        """Return the scaled direction of each parameter, ``(elements,)``."""
        directions, by_shape = batch.temporaries(), defaultdict(list)
        for index, parameter in enumerate(batch.shaped):
            if id(parameter) in self._found:
                found = self._found[id(parameter)].view(parameter.shape)
                _shaped(directions[index], parameter).copy_(found)
            else:
                by_shape[len(parameter), parameter.numel() // max(1, len(parameter))].append(index)
        for indices in by_shape.values():
            matrices = torch.stack(
                [_matrix(moves[index], batch.shaped[index]) for index in indices]
            )
            for index, matrix in zip(indices, self._made_orthogonal(matrices), strict=True):
                parameter = batch.shaped[index]
                _shaped(directions[index], parameter).copy_(matrix.view(parameter.shape))
        return directions


def orthogonalized(matrices: Tensor, iterations: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return approximately U V^T for each of the ``(n, rows, columns)`` matrices U S V^T, with singular values of 0.7
    to 1.2.

    The iterations run in ``dtype``, or in the type of the matrices if it is None.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(dtype or matrices.dtype, copy=True)
    x = x.mT if tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def rate_scale(scaling: str, rows: int, columns: int) -> float:
    """Return the factor of the learning rate for a matrix."""
    if scaling == "rms":
        return float(0.2 * max(rows, columns) ** 0.5)
    return float(max(1.0, rows / columns) ** 0.5)


def _iteration_type(settings: TrainingSettings) -> torch.dtype | None:
    return torch.bfloat16 if settings.precision in ("bf16", "fp16") else None


def _shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    return flat.as_strided(parameter.shape, parameter.stride())


def _matrix(flat: Tensor, parameter: Tensor) -> Tensor:
    return _shaped(flat, parameter).flatten(1)
