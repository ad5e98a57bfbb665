"""Measure the host's work per sample: reading, decoding and cropping, until the batch is ready for the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainers.workloads.workload import Workload, some_samples

if TYPE_CHECKING:
    import torch

SAMPLES = 64
REPEATS = 3
MOST_SECONDS = 1.0
"""The maximum time per repetition in seconds; fewer samples are measured if they would take longer."""


def host_seconds_per_sample(
    workload: Workload, samples: int = SAMPLES, *, evaluation: bool = False
) -> float:
    """Measure how many seconds one core of this machine needs to make one sample ready for the device.

    The result is the minimum over several repetitions with ``samples`` samples spread over the training (or evaluation)
    set, summed over all threads. If the result is t, a worker with c cores for data loading prepares at most c / t
    samples per second. The time excludes waiting for storage (``WorkloadCost.sample_bytes`` is the amount read) and the
    device's work (``prepare``).
    """
    import torch

    total = workload.evaluation_samples if evaluation else workload.train_samples
    count = min(samples, total)
    batches = torch.split(torch.arange(count) * total // count, workload.largest_micro_batch)
    _prepare(workload, batches[:1], evaluation)  # starts threads, fills caches
    first = _seconds(workload, batches[:1], evaluation)
    batches = batches[: max(1, int(MOST_SECONDS / max(first, 1e-6)))]
    least = min(_seconds(workload, batches, evaluation) for _ in range(REPEATS))
    return least / sum(map(len, batches))


def _seconds(workload: Workload, batches: tuple[torch.Tensor, ...], evaluation: bool) -> float:
    started = time.process_time()
    _prepare(workload, batches, evaluation)
    return time.process_time() - started


def _prepare(workload: Workload, batches: tuple[torch.Tensor, ...], evaluation: bool) -> None:
    import torch

    if workload.streamed:
        some_samples(workload, sum(map(len, batches)), evaluation=evaluation)
        return
    for indices in batches:
        if evaluation:
            workload.evaluation_batch(indices)
        else:
            workload.training_batch(indices, torch.zeros_like(indices), 0)
