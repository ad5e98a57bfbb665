"""LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1).

    ratio = trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + trust_epsilon)  per tensor, raw gradient g

and, with d = g + weight_decay * w, one of three rules, chosen by ``momentum_form``:

    inside      v = momentum * v + rate * ratio * d                     w = w - v
    corrected   v = momentum * v * rate / last rate + rate * ratio * d  w = w - v
    outside     v = momentum * v + d                                    w = w - rate * ratio * v

The form ``inside``, the default, is the rule of the paper and of MLPerf's reference (mlcommons/training,
retired_benchmarks/resnet-tf2/tensorflow2/lars_optimizer.py, commit aa344c7f). The form ``corrected`` is the rule of
NVIDIA's MLPerf submissions, which multiply the momentum by the rate over the last rate
(mlcommons/training_results_v1.0, NVIDIA/benchmarks/resnet/implementations/mxnet/common/fit.py, SGDwFASTLARS). The form
``outside`` is the rule of TensorFlow 1.12 and of the TPU code of 2018 (tensorflow/tpu,
models/official/resnet/lars_optimizer.py), where the rate and the ratio of an update also multiply the earlier updates
in the buffer.

The form ``corrected`` is also the rule of timm's LARS (huggingface/pytorch-image-models, timm/optim/lars.py, commit
5788a1af), which most PyTorch code uses. With u = v / rate, it reads ``u = momentum * u + ratio * d`` and ``w = w - rate
* u``: the ratio is applied to the gradient before the buffer, and the rate outside. timm uses a trust_epsilon of 1e-8
and, with ``always_adapt=False``, does not adapt parameters without decay, so its LARS without weight decay is SGD.

The paper has no trust_epsilon, so its default is 0. MLPerf's reference uses 1e-7, because its default of 0.0 enters
``epsilon or backend.epsilon()``, which is 1e-7 in Keras. Each form supports heavy-ball and Nesterov momentum.

Biases and normalization parameters have ratio 1 and do not decay, as with MLPerf's skip list, unless
``adapt_norm_and_bias``, ``decay_norm_and_bias`` and ``decay_bias`` are set. A tensor whose weight or gradient norm is
zero (the zero-initialized last gamma of a block) has ratio 1 and keeps its decay. Apex's LARC and NVCaffe's variant are
different rules, which clip the ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.momentum import fused_momentum, momentum_move_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch
from trainers.optimizers.trust_ratio import tensor_norms, trust_ratios


class LARSRule(GroupOptimizer):
    """LARS for the adapted parameters, SGD with the same momentum form for the others."""

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients = self.settings, batch.gradients()
        ratios: float | Tensor = 1.0
        if batch.adapted:
            weight_norms, gradient_norms = tensor_norms(batch.parameters, gradients)
            ratios = trust_ratios(
                weight_norms,
                gradient_norms,
                settings.trust_coefficient,
                batch.weight_decay,
                settings.trust_epsilon,
            )
        momentum_move_(
            batch,
            gradients,
            settings.momentum_form or "inside",
            learning_rate,
            settings.momentum,
            nesterov=settings.nesterov,
            ratios=ratios,
        )

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:
        """Update several training runs at once."""
        memory = update.memory
        weights, gradients = memory.norms(memory.parameters, update.gradients)
        ratios = trust_ratios(
            weights,
            gradients,
            update.blocks("trust_coefficient"),
            update.decay_of_blocks,
            update.blocks("trust_epsilon"),
        )
        ratios = torch.where(update.adapted, ratios, 1.0)
        fused_momentum(update, settings, settings.momentum_form or "inside", ratios)
