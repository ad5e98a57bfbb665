"""An upper bound on a study's cost, computed before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StudyPrice:
    """An upper bound on a study's cost.

    The sweep processes at most ``sweep_samples``: ``trials`` trials of at most ``epochs_per_trial`` epochs, each of
    ``train_samples`` samples. A race may process ``race_samples`` more at the full-scale batch size. ``trials_at_once``
    is how many trials fit on this machine, and ``seconds_per_sample`` is a worker's time per sample at each rung that
    was timed; ``sweep_seconds`` and ``race_seconds`` follow from them. Unknown amounts are None, and ``reason`` says
    why.
    """

    trials: int
    epochs_per_trial: float
    train_samples: int
    sweep_samples: int
    race_samples: int
    trials_at_once: int | None = None
    seconds_per_sample: Mapping[int, float] | None = None
    sweep_seconds: float | None = None
    race_seconds: float | None = None
    reason: str = "it was not timed"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)
