"""SOAP: Adam in the eigenbasis of Shampoo's factors (Vyas et al., arXiv:2409.11321, algorithm 3).

For a gradient g of a weight and each of its preconditioned dimensions i, where mat_i(g) is the matrix whose rows run
along dimension i, and rot(x) is x times Q_i along every i:

    m = beta1 * m + (1 - beta1) * g                     v = beta2 * v + (1 - beta2) * rot(g)^2
    d = rot(m) / (sqrt(v) + epsilon), rotated back      the bias corrections apply to the rate, as in Adam
    w = (w - rate * d) (1 - rate * weight_decay)
    H_i = beta2 * H_i + (1 - beta2) * mat_i(g) mat_i(g)^T
    Q_i = QR(H_i Q_i), its columns first sorted by decreasing diag(Q_i^T H_i Q_i), and v with them,
                                                        every ``preconditioner_interval`` updates

where beta1 is ``soap_beta1`` and beta2 is ``soap_beta2``. The first update moves nothing: it computes H_i, and Q_i from
its eigenvectors. Dimensions with size 1 or a size above ``preconditioner_size_limit``, and parameters that are not
adapted (biases, normalizations), have Q_i = I, which gives AdamW. Decompositions are in float32, or in float64 for
float64 weights.

With several workers, each worker does this for a share of the tensors, and only that worker keeps their H, Q, m and v.
A sum over all workers distributes d, as in distributed Shampoo (Shi et al., arXiv:2309.06497, section 4); the states
are collected before a checkpoint. Rotating and observing take 8 operations per element for each entry of a
preconditioned dimension, and the sum sends each element over the network twice. Sharing therefore pays off for tensors
whose preconditioned dimensions together have at least ``SHARED_FROM`` entries; every worker computes all other tensors
itself.

The authors' code (nikhilvyas/SOAP) is the same, except for dimensions of size 1, where a rotation changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.moments import STATE_NAMES
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup
from trainers.optimizers.shampoo import eigen_decomposition
from trainers.optimizers.sharing import computed_by_owners, task_owners

SHARED_FROM = 512
"""The total size of preconditioned dimensions from which a tensor is shared: 4,000 operations per number sent."""


class SOAPRule(GroupOptimizer):
    """SOAP for the adapted parameters, AdamW for the others.

    The host checks whether each update is skipped, because the intervals are counted in updates.
    """

    state_names = STATE_NAMES
    waits_if_left_out = True

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        super().__init__(groups, settings)
        limit = settings.preconditioner_size_limit
        self._bases: dict[int, Eigenbases] = {}
        self._found: dict[int, Tensor] = {}
        for group in groups:
            made = [Eigenbases(each, limit if group.adapted else 0) for each in group.parameters]
            group.states["statistics"] = [each for one in made for each in one.statistics]
            group.states["bases"] = [each for one in made for each in one.bases]
            self._bases |= {id(each): its for each, its in zip(group.parameters, made, strict=True)}

    def begin_update(self, learning_rate: float | Tensor) -> None:  # noqa: ARG002 - of every rule
        """Get each shared tensor's direction from its owner, in one exchange."""
        shared = self._shared()
        if self.communicator is None or not shared:
            return
        gradients = {batch: batch.gradients() for batch, _, _ in shared}

        def direction(at: int) -> Tensor:
            batch, index, _ = shared[at]
            return self._direction(batch, index, gradients[batch][index])

        tensors = [batch.shaped[index] for batch, index, _ in shared]
        found = computed_by_owners(
            tensors, [owner for _, _, owner in shared], self.communicator, direction
        )
        self._found = {id(each): part for each, part in zip(tensors, found, strict=True)}

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients, done = self.settings, batch.gradients(), self.updates - 1
        beta1, beta2 = settings.value("soap_beta1"), settings.value("soap_beta2")
        rate = learning_rate
        if settings.bias_correction and done:
            rate = learning_rate * ((1 - beta2**done) ** 0.5 / (1 - beta1**done))
        for index, parameter in enumerate(batch.shaped):
            direction = self._found.pop(id(parameter), None)
            if direction is None:
                direction = self._direction(batch, index, gradients[index])
            if not done:
                continue
            weight = _shaped(batch.parameters[index], parameter)
            weight.sub_(direction * rate)
            if batch.weight_decay:
                weight.mul_(1 - learning_rate * batch.weight_decay)

    def gather(self) -> None:
        """Copy the moments, H and Q of every shared tensor from its owner to all workers."""
        workers, kept = self.communicator, list[Tensor]()
        for batch, index, owner in self._shared():
            bases = self._bases[id(batch.shaped[index])]
            its = [batch.states[name][index] for name in STATE_NAMES]
            its += [*bases.statistics, *bases.bases]
            if workers is not None and owner != workers.rank:
                torch._foreach_zero_(its)
            kept += its
        if workers is not None and kept:
            workers.all_reduce_sum_(kept)

    def _shared(self) -> list[tuple[ParameterBatch, int, int]]:
        """Return the batch, the index in it, and the owning worker of each shared tensor; empty for a single worker."""
        if self.communicator is None or self.communicator.size == 1:
            return []
        places = [
            (batch, index, self._bases[id(parameter)])
            for batch in self.batches
            for index, parameter in enumerate(batch.shaped)
        ]
        shared = [each for each in places if each[2].entries >= SHARED_FROM]
        interval = self.settings.preconditioner_interval
        costs = [bases.operations(interval) for _, _, bases in shared]
        return [
            (batch, index, owner)
            for (batch, index, _), owner in zip(
                shared, task_owners(costs, self.communicator.size), strict=True
            )
        ]

    def _direction(self, batch: ParameterBatch, index: int, gradient: Tensor) -> Tensor:
        """Update the state of one parameter with a gradient; return its direction, zero in the first update."""
        settings, parameter, done = self.settings, batch.shaped[index], self.updates - 1
        beta1, beta2 = settings.value("soap_beta1"), settings.value("soap_beta2")
        gradient, moment, square = (
            _shaped(each, parameter)
            for each in (gradient, *(batch.states[name][index] for name in STATE_NAMES))
        )
        bases = self._bases[id(parameter)]
        if not done:
            bases.observe(gradient, beta2)
            bases.begin()
            return torch.zeros_like(moment)
        moment.lerp_(gradient, 1 - beta1)
        square.lerp_(bases.turned(gradient).square(), 1 - beta2)
        move = bases.turned(moment).div_(square.sqrt().add_(settings.epsilon))
        direction = bases.turned(move, back=True)
        bases.observe(gradient, beta2)
        if done % settings.preconditioner_interval == 0:
            square.copy_(bases.iterate(square))
        return direction

    def state_of(self, group: ParameterGroup, index: int) -> dict[str, Tensor]:
        """Return the moments, and the H and Q of each preconditioned dimension."""
        state, bases = super().state_of(group, index), self._bases[id(group.parameters[index])]
        for at, statistic, basis in zip(
            bases.dimensions, bases.statistics, bases.bases, strict=True
        ):
            state |= {f"statistics_{at}": statistic, f"basis_{at}": basis}
        return state


class Eigenbases:
    """The state of one tensor: H and Q, both ``(n, n)``, for each preconditioned dimension with n entries."""

    def __init__(self, parameter: Tensor, size_limit: int) -> None:
        self.dimensions = [at for at, size in enumerate(parameter.shape) if 1 < size <= size_limit]
        sizes = [parameter.shape[at] for at in self.dimensions]
        self.statistics = [parameter.new_zeros(size, size) for size in sizes]
        self.bases = [parameter.new_zeros(size, size) for size in sizes]
        self.entries, self._elements = sum(sizes), parameter.numel()

    def operations(self, interval: int) -> float:
        """Return the operations of one update: three rotations, an observation, and a share of the iteration, whose QR
        is slow for its size.
        """
        return (
            8.0 * self._elements * self.entries
            + sum(15 * len(q) ** 3 for q in self.bases) / interval
        )

    def turned(self, tensor: Tensor, *, back: bool = False) -> Tensor:
        """Return a new tensor: the tensor times Q along every preconditioned dimension, or times Q transposed."""
        turned = tensor.clone()
        for at, basis in zip(self.dimensions, self.bases, strict=True):
            turned = torch.tensordot(turned, basis, ([at], [1 if back else 0])).movedim(-1, at)
        return turned

    def observe(self, gradient: Tensor, beta2: float) -> None:
        """Add a gradient to every H."""
        for at, statistic in zip(self.dimensions, self.statistics, strict=True):
            rows = gradient.movedim(at, 0).reshape(gradient.shape[at], -1)
            statistic.addmm_(rows, rows.T, beta=beta2, alpha=1 - beta2)

    def begin(self) -> None:
        """Set Q to the eigenvectors of H, ordered from the largest eigenvalue to the smallest."""
        for statistic, basis in zip(self.statistics, self.bases, strict=True):
            basis.copy_(eigen_decomposition(statistic)[1].flip(1))

    def iterate(self, second_moment: Tensor) -> Tensor:
        """Do one step of the power iteration on every Q; return the second moment in the new order."""
        for at, statistic, basis in zip(self.dimensions, self.statistics, self.bases, strict=True):
            product = statistic @ basis
            order = (basis * product).sum(0).argsort(descending=True)
            second_moment = second_moment.index_select(at, order)
            wide = product.index_select(1, order)
            basis.copy_(torch.linalg.qr(wide if wide.dtype == torch.float64 else wide.float())[0])
        return second_moment


def _shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    return flat.as_strided(parameter.shape, parameter.stride())
