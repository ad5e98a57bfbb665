"""What a search sees, what it may ask for, and what it is judged by: one small protocol for every method.

A search is simulated on a landscape: trainings there have the curves of real ones. Everything counts that a search
trains: every sample of every training, at any rung, paused, stopped or repeated.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Settings = Mapping[str, float]


@dataclass(frozen=True)
class Range:
    """Where a setting is searched, evenly in its logarithm where ``log``."""

    low: float
    high: float
    log: bool


@dataclass(frozen=True)
class Seen:
    """One training so far: its evaluations after ``epochs``, and its state.

    ``state`` is "paused" (it can go on), "reached" (its target, after ``epochs_to_target``), "diverged", or "censored"
    by the most epochs that a training at this batch may take. ``loss`` is that of the evaluation samples.
    """

    number: int
    global_batch_size: int
    settings: Settings
    seed: int
    epochs: tuple[float, ...]
    metric: tuple[float, ...]
    loss: tuple[float, ...]
    state: str
    epochs_to_target: float | None


@dataclass(frozen=True)
class Step:
    """Train settings at a batch from the start (``number`` None), or go on with training ``number``.

    Until ``until_epochs`` epochs in total, to the next evaluation; or to the end of the training where that is sooner.
    For training ``number`` batch, settings and seed are its own.
    """

    global_batch_size: int
    settings: Settings
    seed: int
    until_epochs: float
    number: int | None
    reason: str


class Method(Protocol):
    """A search. It is asked what to train next with all trainings so far, in the order in which they began."""

    def next(self, seen: Sequence[Seen]) -> Step | None:
        """What to train now; None where the search ends by itself."""

    def recommendation(self, seen: Sequence[Seen]) -> Settings:
        """The settings that it would use at the target batch now."""


@dataclass(frozen=True)
class Curve:
    """A whole training: evaluations after ``epochs``, and how it ends ("reached", "diverged" or "censored")."""

    epochs: tuple[float, ...]
    metric: tuple[float, ...]
    loss: tuple[float, ...]
    state: str


class Landscape(Protocol):
    """One case: what may be trained, and how every training goes; epochs and samples are those of one data set."""

    @property
    def name(self) -> str:
        """Its name in the tables."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """The batch sizes below the target that may be trained."""

    @property
    def target_batch(self) -> int:
        """The batch at which settings are wanted."""

    @property
    def train_samples(self) -> int:
        """Samples in an epoch."""

    @property
    def target(self) -> float:
        """What the metric must reach; more is better."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        """What is tuned, and between which ends at the target batch."""

    @property
    def fixed(self) -> Mapping[str, object]:
        """What all trainings share, such as the optimizer, by the names of TrainingSettings."""

    @property
    def optimum(self) -> float:
        """The epochs that a training at the target with the best settings takes: the unit of what is spent."""

    def candidates(self, global_batch_size: int) -> Sequence[Settings] | None:
        """All settings that can be trained at a batch, or None where any in the ranges can."""

    def most_epochs(self, global_batch_size: int) -> float:
        """What one training at a batch may take."""

    def nearest(
        self, global_batch_size: int, settings: Settings, besides: Sequence[Settings] = ()
    ) -> dict[str, float]:
        """The settings nearest to ``settings`` that can be trained at a batch, none of ``besides``."""

    def train(self, global_batch_size: int, settings: Settings, seed: int) -> Curve:
        """How a training goes; the same whenever it is asked for."""

    def regret(self, settings: Settings) -> float:
        """Expected log of the epochs at the target batch over the optimum; one that is lost counts as 300 epochs."""

    def lost(self, settings: Settings) -> float:
        """The share of trainings at the target batch with these settings that do not reach the target."""


@dataclass(frozen=True)
class Mark:
    """Where a search stood when it had spent ``spend`` (in trainings at the target with the best settings)."""

    spend: float
    settings: Settings
    regret: float
    lost: float


@dataclass(frozen=True)
class Searched:
    """A whole search: its marks, what it spent in all, and whether it ended by itself.

    ``log`` has a line for every step: what was spent before it, the batch, the settings, the epochs and the reason.
    """

    marks: tuple[Mark, ...]
    spent: float
    ended: bool
    trainings: int
    seconds: float
    end: Mark
    log: tuple[str, ...]


def search(landscape: Landscape, method: Method, spends: Sequence[float]) -> Searched:
    """Run a method until it ends by itself or would spend more than the last of ``spends``; no step is cut short.

    At each spend it is asked for its recommendation after the last step that it could afford.
    """
    begun = time.process_time()
    seen: list[Seen] = []
    curves: list[Curve] = []
    marks: list[Mark] = []
    log: list[str] = []
    spent, ended = 0.0, False
    waiting = sorted(spends)
    while waiting:
        step = method.next(tuple(seen))
        if step is None:
            ended = True
            break
        new, curve, cost = _trained(landscape, step, seen, curves)
        if cost <= 0:
            raise ValueError(
                f"a step must train further, but {step} ends where training {step.number} stands"
            )
        while waiting and spent + cost > waiting[0] * (1 + 1e-9):
            marks.append(_mark(landscape, method, seen, waiting.pop(0)))
        if not waiting:
            break
        log.append(
            f"{spent:.2f}: {step.global_batch_size}, "
            + ", ".join(f"{name} {value:.3g}" for name, value in new.settings.items())
            + f", to {new.epochs[-1]:.3g} epochs ({new.state}): {step.reason}"
        )
        spent += cost
        if step.number is None:
            seen.append(new)
            curves.append(curve)
        else:
            seen[step.number] = new
    end = _mark(landscape, method, seen, spent)
    marks += [dataclasses.replace(end, spend=spend) for spend in waiting]
    return Searched(
        tuple(marks), spent, ended, len(seen), time.process_time() - begun, end, tuple(log)
    )


def _mark(landscape: Landscape, method: Method, seen: Sequence[Seen], spend: float) -> Mark:
    settings = landscape.nearest(landscape.target_batch, method.recommendation(tuple(seen)))
    return Mark(spend, settings, landscape.regret(settings), landscape.lost(settings))


def _trained(
    landscape: Landscape, step: Step, seen: Sequence[Seen], curves: Sequence[Curve]
) -> tuple[Seen, Curve, float]:
    """The training after a step, its whole curve, and what the step costs."""
    before = 0.0
    if step.number is None:
        batch, seed, number = step.global_batch_size, step.seed, len(seen)
        if batch not in (*landscape.ladder, landscape.target_batch):
            raise ValueError(
                f"a training must be at one of {(*landscape.ladder, landscape.target_batch)}, but got {batch}"
            )
        settings = landscape.nearest(batch, step.settings)
        curve = landscape.train(batch, settings, seed)
    else:
        number = step.number
        if not 0 <= number < len(seen) or seen[number].state != "paused":
            raise ValueError(f"training {number} must be there and paused to go on, but is not")
        known = seen[number]
        batch, settings, seed = known.global_batch_size, known.settings, known.seed
        curve, before = curves[number], known.epochs[-1]
    most = landscape.most_epochs(batch)
    count = next(
        (
            at
            for at, epochs in enumerate(curve.epochs, start=1)
            if epochs >= min(step.until_epochs, most) * (1 - 1e-9)
        ),
        len(curve.epochs),
    )
    epochs = curve.epochs[:count]
    state = (
        curve.state
        if count == len(curve.epochs)
        else "censored"
        if epochs[-1] >= most * (1 - 1e-9)
        else "paused"
    )
    return (
        Seen(
            number,
            batch,
            settings,
            seed,
            epochs,
            curve.metric[:count],
            curve.loss[:count],
            state,
            epochs[-1] if state == "reached" else None,
        ),
        curve,
        (epochs[-1] - before) / landscape.optimum,
    )
