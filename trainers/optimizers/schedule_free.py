"""Schedule-Free SGD and AdamW (Defazio et al., arXiv:2405.15682), which replace learning rate decay by averaging.

There are three points: z moves by the gradient, x is the average of z, and the gradient is taken at y, a point between
them,

    y = (1 - beta) z + beta x                   y are the weights during training, beta ``schedule_free_beta``
    z = z - rate * (d + weight_decay * y)       d = g(y), or g / (sqrt(v / (1 - beta2^t)) + epsilon) in AdamW
    x = (1 - c) x + c z                         c = weight of this update over the sum of all

with v = beta2 * v + (1 - beta2) * g^2 and an update's weight t^r * (largest rate so far)^p, where r is
``schedule_free_r`` and p is ``schedule_free_rate_power``. The point x is not stored, because it follows from z and y.
It is the point that is evaluated, and it is the result of the training.

The rate needs a warmup and no decay; a batch norm's running statistics come from the passes at y. The authors' code
(facebookresearch/schedule_free) does the same update, but leaves switching between y and x to the user's loop. The
training loop here switches at each evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.moments import bias_correction
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup, add_scaled_


class ScheduleFreeSGDRule(GroupOptimizer):
    """Schedule-Free SGD."""

    state_names: ClassVar[tuple[str, ...]] = ("moved",)

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        super().__init__(groups, settings)
        for group in groups:
            torch._foreach_copy_(
                group.states["moved"], [each.detach() for each in group.parameters]
            )
        self._share: float | Tensor = 0.0  # c of the current update
        # the largest rate and the sum of weights: numbers, or a tensor on an accelerator
        self._plain = [0.0, 0.0]
        self._on_device = groups[0].parameters[0].new_zeros(2, dtype=torch.float64)

    def begin_update(self, learning_rate: float | Tensor) -> None:
        """Compute the weight of the update."""
        settings = self.settings
        power, r = settings.value("schedule_free_rate_power"), settings.value("schedule_free_r")
        if all(batch.on_cpu for batch in self.batches):
            largest = max(self._plain[0], float(learning_rate))
            weight = float(self.count) ** r * largest**power
            self._plain = [largest, self._plain[1] + weight]
            self._share = weight / self._plain[1] if self._plain[1] else 0.0
            return
        largest_here, total = self._on_device.unbind()
        largest_here.clamp_(min=learning_rate)
        counted = self.count.double() if isinstance(self.count, Tensor) else float(self.count)
        weight_here = counted**r * largest_here**power
        total.add_(weight_here)
        self._share = torch.where(total > 0, weight_here / total, 0.0)

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        weights, moved = batch.parameters, batch.states["moved"]
        directions = self._directions(batch)
        beta, share = self.settings.value("schedule_free_beta"), self._share
        torch._foreach_mul_(weights, 1 - share)
        add_scaled_(weights, moved, share)
        add_scaled_(weights, directions, learning_rate * (beta * (1 - share) - 1))
        add_scaled_(moved, directions, -learning_rate)

    def _directions(self, batch: ParameterBatch) -> list[Tensor]:
        return batch.gradients_with_decay()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Replace y with the averaged weights x, and restore y bit for bit afterwards."""
        beta = self.settings.value("schedule_free_beta")
        with torch.no_grad():
            kept = []
            for batch in self.batches:
                batch.follow()
                kept.append(torch._foreach_mul(batch.parameters, 1.0))
                torch._foreach_lerp_(batch.parameters, batch.states["moved"], 1 - 1 / beta)
        try:
            yield
        finally:
            with torch.no_grad():
                for batch, weights in zip(self.batches, kept, strict=True):
                    torch._foreach_copy_(batch.parameters, weights)

    def numbers(self) -> dict[str, Any]:
        """Return the largest rate and the sum of the weights."""
        on_cpu = all(batch.on_cpu for batch in self.batches)
        return {"sums": list(self._plain) if on_cpu else self._on_device.tolist()}

    def set_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`numbers`."""
        self._plain = list(numbers.get("sums", self._plain))
        self._on_device.copy_(torch.tensor(self._plain, dtype=torch.float64))

    def _changed(self) -> list[Tensor]:
        return [*super()._changed(), self._on_device]


class ScheduleFreeAdamWRule(ScheduleFreeSGDRule):
    """Schedule-Free AdamW."""

    state_names = ("moved", "second_moment")

    def _directions(self, batch: ParameterBatch) -> list[Tensor]:
        settings, gradients = self.settings, batch.gradients()
        second = batch.states["second_moment"]
        torch._foreach_mul_(second, settings.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - settings.beta2)
        roots = list(
            torch._foreach_div(second, bias_correction(settings.beta2, self.count, settings))
        )
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, settings.epsilon * batch.epsilon)
        directions = list(torch._foreach_div(gradients, roots))
        if batch.weight_decay:
            torch._foreach_add_(directions, batch.parameters, alpha=batch.weight_decay)
        return directions
