"""Random problems for benchmarks, with known critical batch sizes over a realistic range."""

from __future__ import annotations

import dataclasses

import numpy as np

from trainers.workloads.noisy_quadratic.optimum import critical_batch_size, fewest_samples
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

CRITICAL_BATCH_SIZES = (2**4, 2**14)


def random_problem(
    rng: np.random.Generator, *, momentum: float = 0.0
) -> tuple[QuadraticProblem, float]:
    """Return a problem and its target loss.

    Spectrum exponent, number of modes and target are drawn; so are, log-uniformly, the critical batch size at this
    momentum, between 2^4 and 2^14 samples, and the fewest epochs to the target, between 5 and 40. Noise and epoch
    are then scaled to match: the samples to a target are proportional to the noise scale at each B / noise_scale.
    """
    shape = QuadraticProblem(
        modes=int(rng.integers(100, 301)),
        curvature_exponent=float(rng.uniform(0.9, 1.5)),
        noise_scale=1.0,
    )
    target = shape.initial_loss * float(np.exp(rng.uniform(np.log(0.005), np.log(0.05))))
    critical = float(np.exp(rng.uniform(*np.log(CRITICAL_BATCH_SIZES))))
    epochs = float(np.exp(rng.uniform(*np.log((5, 40)))))
    scale = critical / critical_batch_size(shape, target, momentum=momentum)
    samples = scale * fewest_samples(shape, target)
    return dataclasses.replace(
        shape, noise_scale=scale, train_samples=max(1, round(samples / epochs))
    ), target
