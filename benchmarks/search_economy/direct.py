"""Searches directly at the target batch size with Optuna's samplers and pruners, at their defaults.

A run may take as long as the landscape allows; pruners check it after a sixteenth and a quarter of that. The searches
recommend the settings of the run that reached the target soonest. Before any run has reached it, they recommend the run
with the best metric among those trained longest; before any run at all, the middle of the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import optuna

from benchmarks.search_economy.protocol import Landscape, Seen, Settings, Step

RESOURCES = 64
"""Resource units of the longest run."""

RUNGS = (4, 16)
"""Resource units at which pruners check a run."""

Sampler = Callable[[int], optuna.samplers.BaseSampler]


def halving() -> optuna.pruners.BasePruner:
    """Return successive halving (the rule of ASHA)."""
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=RUNGS[0], reduction_factor=4)


def hyperband() -> optuna.pruners.BasePruner:
    """Return Hyperband: successive halving from different first rungs."""
    return optuna.pruners.HyperbandPruner(
        min_resource=RUNGS[0], max_resource=RESOURCES, reduction_factor=4
    )


class DirectSearch:
    """One search; ``tells_pruned`` is for samplers that would otherwise not learn from pruned trials."""

    def __init__(
        self,
        landscape: Landscape,
        sampler: optuna.samplers.BaseSampler,
        pruner: optuna.pruners.BasePruner,
        seed: int,
        *,
        tells_pruned: bool = False,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._landscape = landscape
        # Hyperband derives its brackets from the study's name
        self._study = optuna.create_study(
            sampler=sampler,
            pruner=pruner,
            direction="minimize",
            study_name=f"{landscape.name} {seed}",
        )
        self._tells_pruned = tells_pruned
        self._trial: Any = None
        self._number = 0

    def next(self, seen: Sequence[Seen]) -> Step:
        """Return the next rung of the current run, or a new run if the current one has ended or is pruned."""
        if self._trial is not None:
            now = seen[self._number]
            if now.state == "paused" and not self._pruned(now):
                return self._until(now.settings, now.epochs[-1], self._number)
            self._tell(now)
        settings = self._ask([each.settings for each in seen])
        self._number = len(seen)
        return self._until(settings, 0.0, None)

    def recommendation(self, seen: Sequence[Seen]) -> Settings:
        """Return the settings of the best run so far."""
        if not seen:
            return {
                name: math.sqrt(each.low * each.high) if each.log else (each.low + each.high) / 2
                for name, each in self._landscape.ranges.items()
            }
        return min(seen, key=self._standing).settings

    def _standing(self, one: Seen) -> tuple[float, float]:
        """Rank a run (lower is better) by epochs to the target, or else by how long and how well it trained."""
        if one.epochs_to_target is not None:
            return -math.inf, one.epochs_to_target
        rung = sum(one.epochs[-1] >= self._epochs(each) for each in RUNGS)
        failed = one.state == "diverged"
        return (math.inf if failed else -rung), -max(one.metric)

    def _ask(self, tried: Sequence[Settings]) -> Settings:
        trial = self._study.ask()
        wanted = self._suggested(trial)
        settings = self._landscape.nearest(self._landscape.target_batch, wanted, tried)
        if any(not math.isclose(settings[name], wanted[name], rel_tol=0.01) for name in wanted):
            # only some settings can be trained, so the sampler gets the trained ones instead
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(settings)
            trial = self._study.ask()
            self._suggested(trial)
        self._trial = trial
        return settings

    def _suggested(self, trial: Any) -> dict[str, float]:
        return {
            name: trial.suggest_float(name, each.low, each.high, log=each.log)
            for name, each in self._landscape.ranges.items()
        }

    def _pruned(self, now: Seen) -> bool:
        rung = max(
            (each for each in RUNGS if now.epochs[-1] >= self._epochs(each) * (1 - 1e-9)), default=0
        )
        if rung == 0:
            return False
        self._trial.report(-max(now.metric), step=rung)
        return bool(self._trial.should_prune())

    def _tell(self, now: Seen) -> None:
        budget = math.log(self._landscape.most_epochs(self._landscape.target_batch))
        if now.epochs_to_target is not None:
            self._study.tell(self._trial, math.log(now.epochs_to_target))
        elif now.state == "paused" and not self._tells_pruned:
            self._study.tell(self._trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(self._trial, budget + {"diverged": 1.0}.get(now.state, 0.5))
        self._trial = None

    def _until(self, settings: Settings, epochs: float, number: int | None) -> Step:
        rungs = (*RUNGS, RESOURCES)
        until = next(
            self._epochs(each) for each in rungs if self._epochs(each) > epochs * (1 + 1e-9)
        )
        return Step(
            self._landscape.target_batch,
            settings,
            len(self._study.trials),
            until,
            number,
            "the sampler's suggestion" if number is None else "not pruned",
        )

    def _epochs(self, resource: int) -> float:
        return self._landscape.most_epochs(self._landscape.target_batch) * resource / RESOURCES


class PromotingSearch(DirectSearch):
    """ASHA as published (arXiv:1810.05934, algorithm 2): runs pause at each rung, and the best are promoted.

    The best quarter of every rung continues; if no run can be promoted, a new one starts. Each paused run is reported
    to the sampler as pruned, and again if it reaches the target later.
    """

    def __init__(
        self, landscape: Landscape, sampler: optuna.samplers.BaseSampler, seed: int
    ) -> None:
        super().__init__(landscape, sampler, optuna.pruners.NopPruner(), seed)
        self._promoted: set[tuple[int, int]] = set()

    def next(self, seen: Sequence[Seen]) -> Step:
        """Return the best promotable run of the highest rung, or a new run."""
        if seen:
            self._told(seen[self._number])
        for rung in reversed(RUNGS):
            there = [each for each in seen if self._reports(each, rung)]
            best = sorted(there, key=lambda each: self._value(each, rung))[: len(there) // 4]
            for each in best:
                if (rung, each.number) not in self._promoted and each.state == "paused":
                    self._promoted.add((rung, each.number))
                    self._number = each.number
                    return self._until(each.settings, each.epochs[-1], each.number)
        settings = self._ask([each.settings for each in seen])
        self._number = len(seen)
        return self._until(settings, 0.0, None)

    def _told(self, now: Seen) -> None:
        if self._trial is None:  # the run was continued, so its trial was reported before
            if now.epochs_to_target is not None:
                self._study.add_trial(
                    optuna.trial.create_trial(
                        params=dict(now.settings),
                        distributions=self._study.trials[-1].distributions,
                        value=math.log(now.epochs_to_target),
                    )
                )
            return
        if now.state == "paused":
            self._trial.report(-max(now.metric), step=RUNGS[0])
        self._tell(now)

    def _reports(self, one: Seen, rung: int) -> bool:
        """Return whether a run reached the rung; a run that ended earlier counts as having reported there."""
        return one.epochs[-1] >= self._epochs(rung) * (1 - 1e-9) or one.state != "paused"

    def _value(self, one: Seen, rung: int) -> float:
        """Return the value of a run at a rung (lower is better); reaching the target by then beats not reaching it."""
        if one.epochs_to_target is not None and one.epochs_to_target <= self._epochs(rung):
            return -math.inf
        if one.state == "diverged" and one.epochs[-1] < self._epochs(rung):
            return math.inf
        return -max(
            metric
            for epochs, metric in zip(one.epochs, one.metric, strict=True)
            if epochs <= self._epochs(rung) * (1 + 1e-9) or epochs == one.epochs[0]
        )


DIRECT: dict[str, Callable[[Landscape, int], DirectSearch]] = {
    "TPE + halving": lambda landscape, seed: DirectSearch(
        landscape, optuna.samplers.TPESampler(seed=seed), halving(), seed
    ),
    "TPE + Hyperband": lambda landscape, seed: DirectSearch(
        landscape, optuna.samplers.TPESampler(seed=seed), hyperband(), seed
    ),
    "TPE + ASHA": lambda landscape, seed: PromotingSearch(
        landscape, optuna.samplers.TPESampler(seed=seed), seed
    ),
    "GP + halving": lambda landscape, seed: DirectSearch(
        landscape, optuna.samplers.GPSampler(seed=seed), halving(), seed, tells_pruned=True
    ),
    "random + halving": lambda landscape, seed: DirectSearch(
        landscape, optuna.samplers.RandomSampler(seed=seed), halving(), seed
    ),
    "random": lambda landscape, seed: DirectSearch(
        landscape, optuna.samplers.RandomSampler(seed=seed), optuna.pruners.NopPruner(), seed
    ),
}
"""Functions that create a search of a landscape with a seed."""
