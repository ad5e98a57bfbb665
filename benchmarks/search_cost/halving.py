"""Optuna's TPE and SuccessiveHalvingPruner (the rule of ASHA), with their defaults, as a direct search uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

RESOURCES = 64
"""Resources of the longest training; rungs are at 1/16 and 1/4 of it."""


def new_study(seed: int) -> Any:
    """Return an Optuna study that minimizes, with logging silenced."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed),
        direction="minimize",
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=4, reduction_factor=4),
    )


def halving(trial: Any, budget: float) -> Callable[[Sequence[float], Sequence[float]], bool]:
    """Return a rule that stops a trial of at most ``budget`` epochs by its epochs and losses so far."""
    reported: set[int] = {0}

    def stop(epochs: Sequence[float], losses: Sequence[float]) -> bool:
        resource = int(RESOURCES * epochs[-1] / budget)
        if resource in reported:
            return False
        reported.add(resource)
        trial.report(losses[-1], step=resource)
        return bool(trial.should_prune())

    return stop
