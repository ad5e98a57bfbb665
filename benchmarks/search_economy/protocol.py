"""The inputs, requests and evaluation of a search: one small protocol for every method.

A search is simulated on a landscape, whose runs have the curves of real runs. Everything that a search trains counts:
every sample of every run, at any rung, whether paused, stopped or repeated.
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
    """The range of a setting, sampled uniformly in its logarithm if ``log``."""

    low: float
    high: float
    log: bool


@dataclass(frozen=True)
class Seen:
    """One run so far: its evaluations after ``epochs``, and its state.

    ``state`` is "paused" (resumable), "reached" (its target, after ``epochs_to_target``), "diverged", or "censored" by
    the maximum epochs of a run at this batch size. ``loss`` is the loss on the evaluation samples.
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
    """A step: train settings at a batch size from the start (``number`` is None), or continue run ``number``.

    The step trains to the next evaluation at ``until_epochs`` total epochs, or to the end of the run if that is sooner.
    Run ``number`` keeps its own batch size, settings and seed.
    """

    global_batch_size: int
    settings: Settings
    seed: int
    until_epochs: float
    number: int | None
    reason: str


class Method(Protocol):
    """A search that decides what to train next from all runs so far, in the order in which they started."""

    def next(self, seen: Sequence[Seen]) -> Step | None:
        """Return the next step; None if the search ends by itself."""

    def recommendation(self, seen: Sequence[Seen]) -> Settings:
        """Return the currently recommended settings for the target batch."""


@dataclass(frozen=True)
class Curve:
    """A full run: its evaluations after ``epochs``, and how it ends ("reached", "diverged" or "censored")."""

    epochs: tuple[float, ...]
    metric: tuple[float, ...]
    loss: tuple[float, ...]
    state: str


class Landscape(Protocol):
    """One case: the possible runs and their curves; epochs and samples refer to one data set."""

    @property
    def name(self) -> str:
        """The landscape's name in the tables."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """The batch sizes below the target that may be trained."""

    @property
    def target_batch(self) -> int:
        """The batch size for which settings are searched."""

    @property
    def train_samples(self) -> int:
        """Samples in an epoch."""

    @property
    def target(self) -> float:
        """The threshold of the metric; higher is better."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The tuned settings and their ranges at the target batch."""

    @property
    def fixed(self) -> Mapping[str, object]:
        """Settings common to all runs, such as the optimizer, by the names of TrainingSettings."""

    @property
    def optimum(self) -> float:
        """Epochs of a run at the target batch with the best settings, which are the unit of spending."""

    def candidates(self, global_batch_size: int) -> Sequence[Settings] | None:
        """Return all settings that can be trained at a batch, or None if any in the ranges can."""

    def most_epochs(self, global_batch_size: int) -> float:
        """Return the maximum epochs of one run at a batch size."""

    def nearest(
        self, global_batch_size: int, settings: Settings, besides: Sequence[Settings] = ()
    ) -> dict[str, float]:
        """Return the trainable settings nearest to ``settings`` at a batch, excluding ``besides``."""

    def train(self, global_batch_size: int, settings: Settings, seed: int) -> Curve:
        """Return the curve of a run; the result is deterministic."""

    def regret(self, settings: Settings) -> float:
        """Return the expected log ratio of epochs at the target batch to the optimum.

        A lost run counts as 300 epochs, or 12 for DeBERTa.
        """

    def lost(self, settings: Settings) -> float:
        """Return the share of runs at the target batch with these settings that miss the target."""


@dataclass(frozen=True)
class Mark:
    """The state of a search after spending ``spend`` (in runs at the target batch with the best settings)."""

    spend: float
    settings: Settings
    regret: float
    lost: float


@dataclass(frozen=True)
class Searched:
    """A whole search: its marks, its total spending, and whether it ended by itself.

    ``log`` has a line for every step: the spending before it, the batch, the settings, the epochs and the reason.
    """

    marks: tuple[Mark, ...]
    spent: float
    ended: bool
    trainings: int
    seconds: float
    end: Mark
    log: tuple[str, ...]


def search(landscape: Landscape, method: Method, spends: Sequence[float]) -> Searched:
    """Run a method until it ends by itself or would exceed the last of ``spends``; no step is cut short.

    At each spend, the method's recommendation is taken after the last affordable step.
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
                f"a step must train further, but {step} ends where run {step.number} stands"
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
    """Return the run after a step, its full curve, and the cost of the step."""
    before = 0.0
    if step.number is None:
        batch, seed, number = step.global_batch_size, step.seed, len(seen)
        if batch not in (*landscape.ladder, landscape.target_batch):
            raise ValueError(
                f"a run must be at one of {(*landscape.ladder, landscape.target_batch)}, but got {batch}"
            )
        settings = landscape.nearest(batch, step.settings)
        curve = landscape.train(batch, settings, seed)
    else:
        number = step.number
        if not 0 <= number < len(seen) or seen[number].state != "paused":
            raise ValueError(f"run {number} must exist and be paused to continue, but is not")
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
