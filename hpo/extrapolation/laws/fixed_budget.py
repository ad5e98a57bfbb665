"""What trainings of a fixed number of epochs lack: the law of the epochs, read the other way.

A batch or settings that need f times the epochs to a target get in N epochs as far as the best ones get in N / f. Along
a learning curve what a training lacks falls about as a power of its samples, S ~ n^-r (Hestness et al. 2017,
arXiv:1712.00409; Kaplan et al. 2020, arXiv:2001.08361), so that after N epochs

    log S = log S_min + r log f(batch, settings)

with f as in the laws of the epochs to a target, and r an unknown. S is a loss, or what a metric lacks to 1
(:class:`trainers.job.Question`). A part of the loss that no training takes away makes r smaller; it is not told apart
from r, for trainings of one length cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.laws.parameters import Parameter
from hpo.extrapolation.laws.priors import Normal

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

# exponents of published learning curves lie between 0.07 and 0.5 of the whole loss; the error of small images falls
# about as fast as the samples of a training grow
GAIN = Normal(float(np.log(0.3)), 0.8)
# of log S: between tuned recipes, and between seeds; about r times what they are in log epochs, and widely believed
RECIPE_SCATTER, TRIAL_SCATTER = Normal(float(np.log(0.01)), 1.0), Normal(float(np.log(0.02)), 1.2)
LEAST_SCATTER = 0.002  # of log S between seeds: more digits than an evaluation has say nothing


@dataclass(frozen=True)
class FixedBudget:
    """Trainings of ``epochs`` each."""

    epochs: float

    @property
    def log_epochs(self) -> float:
        """The budget in log epochs."""
        return float(np.log(self.epochs))

    def parameters(self) -> list[Parameter]:
        """The unknown of this law, r."""
        return [Parameter("log_gain", GAIN.mean, GAIN.sd)]

    def gain(self, values: Values) -> Array:
        """r, by how much log S rises with the log factor on the epochs: (particles,)."""
        return np.asarray(np.exp(values["log_gain"]))
