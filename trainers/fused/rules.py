"""An optimizer's rule, applied to the parameters of all fused training runs at once, with vectors of rates.

The formulas are defined with the rules, in :mod:`trainers.optimizers`. Numbers that differ between runs are read from a
row of a table that is computed for many updates at once, so that no update waits for the host. A rule without a fused
form (Shampoo, whose factors are small matrices of many sizes) updates each run separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.fused.memory import StackedMemory, group_optimizer_of
from trainers.loop.synchronous import SynchronousTraining
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.optimizer import GroupOptimizer


class FusedRule:
    """The update rule of all runs, whose settings agree as :mod:`trainers.fused.fusable` requires."""

    def __init__(self, memory: StackedMemory, trainings: Sequence[SynchronousTraining]) -> None:
        self._memory, self._trainings = memory, trainings
        self._settings = trainings[0].job.settings
        self._rule = type(group_optimizer_of(trainings[0]))
        like = memory.parameters
        treatment_of = {
            parameter: group.treatment
            for training in trainings
            for group in group_optimizer_of(training).groups
            for parameter in group.parameters
        }
        treatments = [
            treatment_of[parameter]
            for parameters in zip(*(each.replica.parameters for each in trainings), strict=True)
            for parameter in parameters
        ]
        decays, adapted, rates, epsilons = zip(*treatments, strict=True)
        self._decay = torch.tensor(decays, dtype=like.dtype).to(like.device)
        self._decay_of_elements = self._decay.index_select(0, memory.block_of)
        self._adapted = torch.tensor(adapted).to(like.device)
        self._of_blocks = {
            name: torch.tensor(values, dtype=like.dtype).to(like.device)
            for name, values in (("rate", rates), ("epsilon", epsilons))
            if any(value != 1 for value in values)
        }

    def table(
        self, rates: Sequence[Sequence[float]], epochs: Sequence[Sequence[float]]
    ) -> FusedNumbers:
        """Return the numbers of the next updates; ``rates`` and ``epochs`` are given by update and run."""
        rows = [
            [
                {
                    **_numbers(
                        training.job.settings, group_optimizer_of(training).updates + at, rate
                    ),
                    **self._rule.fused_numbers(training.job.settings, rate, came),
                }
                for training, rate, came in zip(self._trainings, *each, strict=True)
            ]
            for at, each in enumerate(zip(rates, epochs, strict=True), start=1)
        ]
        names = list(rows[0][0])
        values = [[[its[name] for its in row] for name in names] for row in rows]
        like = self._memory.parameters
        return FusedNumbers(
            names, torch.tensor(values, dtype=torch.float64).to(like.device, like.dtype)
        )

    @torch.no_grad()
    def step(self, gradients: Tensor, numbers: Mapping[str, Tensor]) -> None:
        """Update all runs with their gradients."""
        update = FusedUpdate(
            self._memory,
            gradients,
            numbers,
            self._decay_of_elements,
            self._decay,
            self._adapted,
            self._of_blocks,
        )
        self._rule.fused(update, self._settings)


@dataclass(frozen=True)
class FusedNumbers:
    """Numbers by update, name and training, ``(updates, names, K)``."""

    names: Sequence[str]
    values: Tensor

    def row(self, update: int) -> dict[str, Tensor]:
        """Return the numbers of one update, ``(K,)`` each."""
        return dict(zip(self.names, self.values[update].unbind(), strict=True))


def has_fused_rule(training: SynchronousTraining) -> bool:
    """Return whether the optimizer of a training run can update several runs at once."""
    return type(group_optimizer_of(training)).fused is not GroupOptimizer.fused


def _numbers(settings: TrainingSettings, updates: int, rate: float) -> dict[str, float]:
    """Return the numbers that most rules need for update number ``updates`` (from 1) of one run."""
    count = updates if settings.bias_correction else math.inf
    limit = settings.weight_norm_limit
    return {
        "rate": rate,
        "momentum": settings.momentum,
        "beta2": settings.beta2,
        "first_part": 1 - settings.beta1,
        "second_part": 1 - settings.beta2,
        "epsilon": settings.epsilon,
        "first_correction": 1 - math.pow(settings.beta1, count),
        "second_correction": 1 - math.pow(settings.beta2, count),
        "trust_coefficient": settings.trust_coefficient,
        "trust_epsilon": settings.trust_epsilon,
        "weight_norm_limit": math.inf if limit is None else limit,
    }
