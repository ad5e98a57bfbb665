"""Several trainings of one model as one: weights of shape (K, ...), one forward and backward pass for all of them.

The trainings differ in rates, momenta, decay, warmup, seed and place in the stream of samples; model, global batch size
and rule of the optimizer are the same. Each of them stays an ordinary training, whose tensors lie in the common memory:
it reports the points and writes the checkpoints that it would report and write alone.
"""

from trainers.fused.fusable import check_fusable, fusion_key
from trainers.fused.trainings import FusedTrainings

__all__ = ["FusedTrainings", "check_fusable", "fusion_key"]
