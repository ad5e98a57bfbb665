"""Trainings of one random noisy quadratic, simulated evaluation by evaluation, with their costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.random_problem import random_problem
from trainers.workloads.noisy_quadratic.dynamics import (
    apply_affine_map,
    initial_quadratic_moments,
    make_quadratic_update,
    many_steps,
    stability_limit,
)
from trainers.workloads.noisy_quadratic.optimum import epochs_to_target, quadratic_optimum
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

LADDER = (16, 32, 64, 128, 256)
TARGET_BATCH = 16 * LADDER[-1]
SEED_SCATTER = 0.03  # standard deviation of the log epochs between seeds
EVALUATIONS_PER_EPOCH = 4
DIVERGED = 3.0  # times the first loss, as in trainers.workloads.training_run
BUDGET = 4.0  # times the fewest epochs at a batch: the longest trial
MOST_LAG = 0.01  # 1 - momentum, where momentum is tuned

Array = NDArray[np.float64]
Stop = Callable[[list[float], list[float]], bool]
"""Decides whether to stop a trial, from its epochs and losses so far."""


@dataclass(frozen=True)
class Training:
    """One simulated training; ``state`` as in :class:`hpo.extrapolation.evidence.evidence.TrainingObservation`."""

    state: str
    epochs: float
    samples: float
    resolution_epochs: float
    noise_scale: float | None
    losses: list[float] = field(repr=False, default_factory=list)


@dataclass(frozen=True)
class Task:
    """One problem with its search space: learning rates in ``rates``, and momentum unless it is given."""

    problem: QuadraticProblem
    target_loss: float
    momentum: float | None
    rates: tuple[float, float]
    best_epochs: float
    budgets: dict[int, float] = field(default_factory=dict, repr=False)

    def factor(self, learning_rate: float, momentum: float) -> float:
        """Return the expected epochs of settings at the target batch over the fewest: the quality, 1 is best."""
        found = epochs_to_target(
            self.problem,
            self.target_loss,
            learning_rate=learning_rate,
            global_batch_size=TARGET_BATCH,
            momentum=momentum,
        )
        return float(found) / self.best_epochs

    def budget(self, batch: int) -> float:
        """Return the most epochs of a trial at this batch."""
        if batch in self.budgets:
            return self.budgets[batch]
        momentum = 0.9 if self.momentum is None else self.momentum
        self.budgets[batch] = (
            BUDGET
            * quadratic_optimum(self.problem, self.target_loss, batch, momentum=momentum).epochs
        )
        return self.budgets[batch]

    def train(
        self,
        batch: int,
        learning_rate: float,
        momentum: float,
        limit_epochs: float,
        rng: np.random.Generator,
        stop: Stop | None = None,
    ) -> Training:
        """Simulate one training; the seed stretches its curve in time, by ``SEED_SCATTER``."""
        problem = self.problem
        stride = max(1, round(problem.train_samples / (EVALUATIONS_PER_EPOCH * batch)))
        between = stride * batch / problem.train_samples
        stretch = float(np.exp(SEED_SCATTER * rng.standard_normal()))
        update = make_quadratic_update(
            problem.curvature,
            problem.noise,
            learning_rate=learning_rate,
            global_batch_size=batch,
            momentum=momentum,
        )
        map_, moments = (
            many_steps(update, stride),
            initial_quadratic_moments(problem.initial_squares),
        )
        exact, epochs, losses = [problem.initial_loss], list[float](), list[float]()
        state = "censored"
        with np.errstate(over="ignore", invalid="ignore"):
            while (
                state == "censored" and (len(epochs) + 1) * between <= limit_epochs * (1 + 1e-9)
            ) or not epochs:
                at = (len(epochs) + 1) / stretch
                while len(exact) <= at + 1:
                    moments, _ = apply_affine_map(map_, moments)
                    exact.append(float(problem.loss(moments[0])))
                whole = int(at)
                loss = exact[whole] + (at - whole) * (exact[whole + 1] - exact[whole])
                epochs.append((len(epochs) + 1) * between)
                losses.append(loss)
                if not (np.isfinite(loss) and loss <= DIVERGED * problem.initial_loss):
                    state = "diverged"
                elif loss <= self.target_loss:
                    state = "reached"
                elif stop is not None and stop(epochs, losses):
                    state = "pruned"
            gradient = float(moments[0] @ problem.curvature**2)
        noise = (
            float(problem.noise.sum()) / gradient
            if np.isfinite(gradient) and gradient > 0
            else None
        )
        return Training(
            state,
            epochs[-1],
            epochs[-1] * problem.train_samples,
            between,
            noise if state != "diverged" else None,
            losses,
        )


def make_task(seed: int, momentum: float | None) -> Task:
    """Return a random problem with a range of rates that an expert of the workload would search.

    It ranges from 2 to 10 times below the best rate of the smallest rung to 1.2 to 4 times above the stability bound,
    and is the same for every method.
    """
    rng = np.random.default_rng((seed, int(100 * (momentum if momentum is not None else 0.99))))
    problem, target = random_problem(rng, momentum=momentum or 0.0)
    typical = 0.9 if momentum is None else momentum
    first = quadratic_optimum(problem, target, LADDER[0], momentum=typical).learning_rate
    limit = float(stability_limit(problem.curvature, momentum=typical))
    rates = first / rng.uniform(2, 10), limit * rng.uniform(1.2, 4)
    best = quadratic_optimum(problem, target, TARGET_BATCH, momentum=momentum).epochs
    return Task(problem, target, momentum, rates, best)
