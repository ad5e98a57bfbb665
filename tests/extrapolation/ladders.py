"""Simulated ladders with a known truth."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)


@dataclass(frozen=True)
class Truth:
    """A workload that obeys the laws: the best rate saturates, a rate 4 times the best diverges."""

    min_epochs: float = 4.0
    critical_batch: float = 200.0
    max_rate: float = 0.4
    noise_scale: float = 300.0
    seed_scatter: float = 0.08
    budget_epochs: float = 40.0

    def epochs(self, batch: float) -> float:
        return self.min_epochs * (1 + batch / self.critical_batch)

    def best_rate(self, batch: float) -> float:
        return self.max_rate / (1 + self.noise_scale / batch)

    def trial(
        self, batch: int, rate: float, warmup: float, seed: int, rng: np.random.Generator
    ) -> TrainingObservation:
        settings = {"learning_rate": rate, "warmup_epochs": warmup}
        miss = np.log(rate / self.best_rate(batch))
        if miss > np.log(4):
            return TrainingObservation(batch, "diverged", 1.0, settings, seed)
        cost = (
            np.hypot(0.7, min(miss, 0)) - 0.7 + max(miss, 0) ** 2 / 1.2 + 0.02 * (warmup - 1) ** 2
        )
        epochs = self.epochs(batch) * np.exp(cost + self.seed_scatter * rng.standard_normal())
        if epochs > self.budget_epochs:
            return TrainingObservation(batch, "censored", self.budget_epochs, settings, seed)
        return TrainingObservation(batch, "reached", float(epochs), settings, seed)


TUNED = (
    ScaledSetting("learning_rate", "log", 0.01, 1.28),
    ScaledSetting("warmup_epochs", "linear", 0, 5),
)


def sweep(
    truth: Truth,
    rng: np.random.Generator,
    batches: tuple[int, ...] = (16, 32, 64, 128),
    settings: int = 10,
    seeds: int = 2,
) -> Evidence:
    """A random search of ``settings`` settings, each with ``seeds`` seeds, at every rung; no seed is used twice."""
    fresh = itertools.count()
    trials = [
        truth.trial(batch, rate, warmup, next(fresh), rng)
        for batch in batches
        for rate, warmup in zip(
            np.exp(rng.uniform(np.log(0.01), np.log(1.28), settings)),
            rng.uniform(0, 5, settings),
            strict=True,
        )
        for _ in range(seeds)
    ]
    return Evidence(observations=trials, tuned=TUNED)


def table(
    truth: Truth, rng: np.random.Generator, batches: tuple[int, ...], recipe_scatter: float = 0.04
) -> Evidence:
    """Rows of tuned configurations whose recipes differ by ``recipe_scatter``."""
    rows = [
        AggregateRow(
            batch,
            float(truth.epochs(batch) * np.exp(recipe_scatter * rng.standard_normal())),
            10,
            0.02 * truth.epochs(batch),
            {"learning_rate": truth.best_rate(batch)},
        )
        for batch in batches
    ]
    return Evidence(aggregates=rows, tuned=[ScaledSetting("learning_rate")])
