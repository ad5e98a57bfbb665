"""Stochastic gradient descent with momentum, the learning rate outside or inside the buffer.

With d = g + weight_decay * w, ``momentum_form`` is

    outside     v = momentum * v + d                  w = w - rate * v          PyTorch's rule
    inside      v = momentum * v + rate * d           w = w - v                 Caffe's and the LARS paper's rule
    corrected   v = momentum * v * rate / last rate + rate * d      w = w - v   inside, with momentum correction

Nesterov: w - rate * (d + momentum * v) outside, w - momentum * v - rate * d inside. Goyal et al. (arXiv:1706.02677,
section 3, remark 2): with the rate inside, the buffer must be corrected whenever the rate changes. What the
corrected form keeps here is v / rate, which obeys the rule outside; so the two are one, also after a rate of 0,
where the correction by itself is undefined.
"""

from __future__ import annotations

from trainers.optimizers.momentum import move_inside_, move_outside_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import Batch


class SGD(GroupOptimizer):
    """SGD by the rule of ``momentum_form``, with heavy-ball or Nesterov momentum."""

    def update(self, batch: Batch, learning_rate: float) -> None:
        """Update one batch."""
        form, momentum, nesterov = self.settings.momentum_form, self.settings.momentum, self.settings.nesterov
        if form in ("outside", "corrected"):
            move_outside_(batch, batch.gradients(), learning_rate, momentum, nesterov=nesterov,
                          weight_decay=batch.weight_decay)
        else:
            move_inside_(batch, batch.gradients(), learning_rate, momentum, nesterov=nesterov)
