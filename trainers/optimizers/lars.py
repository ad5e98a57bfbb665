"""LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1).

    ratio = trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + trust_epsilon)  per tensor, raw gradient g
    v = momentum * v + rate * ratio * (g + weight_decay * w)                the rate stands inside the buffer
    w = w - v                                         (Nesterov: w - momentum * v - rate * ratio * (...))

The paper has no trust_epsilon (0, the default). MLPerf's reference (mlcommons/training,
image_classification/tensorflow2/lars_optimizer.py) is the same rule with trust_epsilon 1e-7: its default of 0.0 reads
``epsilon or backend.epsilon()``, which Keras has as 1e-7. Both know heavy-ball and Nesterov momentum in this form.

Biases and normalization parameters have ratio 1 and do not decay, as with MLPerf's skip list, unless
``adapt_norm_and_bias`` and ``decay_norm_and_bias`` say so. A tensor whose weight or gradient norm is zero (the
zero-initialized last gamma of a block) has ratio 1 and keeps its decay. Apex's LARC and NVCaffe's variant are
other rules: they keep the rate outside the buffer, or clip the ratio.
"""

from __future__ import annotations

from trainers.optimizers.momentum import move_inside_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import Batch
from trainers.optimizers.trust_ratio import norms, trust_ratios


class LARS(GroupOptimizer):
    """LARS over the adapted parameters, SGD with the rate inside the buffer over the others."""

    def update(self, batch: Batch, learning_rate: float) -> None:
        """Update one batch."""
        settings, gradients = self.settings, batch.gradients()
        if batch.adapted:
            weight_norms, gradient_norms = norms(batch.parameters, gradients)
            ratios = trust_ratios(weight_norms, gradient_norms, settings.trust_coefficient, batch.weight_decay,
                                  settings.trust_epsilon)
            move_inside_(batch, gradients, learning_rate * ratios, settings.momentum, nesterov=settings.nesterov)
        else:
            move_inside_(batch, gradients, learning_rate, settings.momentum, nesterov=settings.nesterov)
