"""A study that takes seconds, and a way to wait for a page that forbids evaluated text."""

from __future__ import annotations

import time
from typing import Any

STUDY = """\
name: {name}
workload: noisy_quadratic
data: {{modes: 50, noise_scale: 0.5, train_samples: 512}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32, 64]
full_scale: {{global_batch_size: 256, machine: local, workers: 2}}
search:
  optimizer: sgd
  learning_rate: {{log_uniform: [0.02, 2], role: scaled}}
  momentum: {{uniform: [0.5, 0.95]}}
  weight_decay: 0
budget: {{trials: {trials}, epochs_per_trial: 40}}
sampler: tpe
"""


def until(page: Any, function: str, given: Any = None, *, seconds: float = 30) -> None:
    """Wait until a function of the page is true; Playwright's own wait needs `eval`, which the pages forbid."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(function, given):
        if time.monotonic() > deadline:
            raise AssertionError(f"{function} with {given!r} did not become true")
        page.wait_for_timeout(30)
