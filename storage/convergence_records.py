"""Convergence points, one by one and in columns; ``storage.records`` hands them on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BYTES_OF_A_POINT = 120
"""What a point counts as stored, about: the limits of a server are in bytes."""


@dataclass(frozen=True, slots=True)
class ConvergencePoint:
    """One evaluation of a trial. A loss or metric that was not measured, or is no number, is NaN."""

    step: int
    samples: int
    epochs: float
    seconds: float
    train_loss: float
    loss: float
    metric: float
    learning_rate: float
    global_batch_size: int
    gradient_noise_scale: float | None = None  # samples (arXiv:1812.06162)


@dataclass(frozen=True, eq=False)
class Convergence:
    """Convergence points of many trials in columns: arrays of shape (points,), by trial, then by step.

    What was not measured is NaN.
    """

    trial_id: NDArray[np.int64]
    step: NDArray[np.int64]
    samples: NDArray[np.int64]
    epochs: NDArray[np.float64]
    seconds: NDArray[np.float64]
    train_loss: NDArray[np.float64]
    loss: NDArray[np.float64]
    metric: NDArray[np.float64]
    learning_rate: NDArray[np.float64]
    global_batch_size: NDArray[np.int64]
    gradient_noise_scale: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.trial_id)

    def of(self, trial_id: int) -> Convergence:
        """The points of one trial, as views into these arrays; of length 0 where there are none."""
        first = self.trial_id.searchsorted(trial_id, "left")
        last = self.trial_id.searchsorted(trial_id, "right")
        columns = (getattr(self, column.name) for column in dataclasses.fields(self))
        return Convergence(*(column[first:last] for column in columns))
