"""Several trainings of one model as one: weights of shape (K, ...), one forward and backward pass for all of them.

The trainings may differ in rates, momenta, decay, warmup, seed and position in the sample stream; they share the model,
the global batch size and the optimizer. Each remains an ordinary training whose tensors lie in the common memory: it
reports the same points and writes the same checkpoints as when trained alone.
"""

from trainers.fused.fusable import check_fusable, fusion_key
from trainers.fused.trainings import FusedTrainings

__all__ = ["FusedTrainings", "check_fusable", "fusion_key"]
