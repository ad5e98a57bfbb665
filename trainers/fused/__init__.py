"""Fuse several training runs of one model: weights of shape (K, ...), one forward and backward pass for all runs.

The runs may differ in learning rate, momentum, weight decay, warmup, seed and position in the sample stream; they share
the model, the global batch size and the optimizer. Each remains an ordinary training run whose tensors lie in one
common block of memory: it reports the same points and writes the same checkpoints as when trained alone.
"""

from trainers.fused.fusable import check_fusable, fusion_key
from trainers.fused.trainings import FusedTrainings

__all__ = ["FusedTrainings", "check_fusable", "fusion_key"]
