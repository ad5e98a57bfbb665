"""The value of further training runs: compares the cost and the full-scale interval of this sweep with those of smaller
and larger sweeps.

Each design sweeps the ladder up to some size with some number of training runs. Its cost is estimated from the study's
own runs at the same rungs. Its interval follows from the laws fitted to these runs
(:mod:`hpo.extrapolation.inference.information`), scaled so that the study's own design has the interval of the study's
forecast.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpo.errors import EvidenceError
from hpo.extrapolation.forecast import told_interval
from hpo.extrapolation.inference.information import TrainingInformation, training_information
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.recommend import recommendation_regret
from hpo.runs.results import StudyForecast, StudyResult
from hpo.runs.study_forecast import forecast
from hpo.study.sizes import (
    BATCH,
    Point,
    cost_share_of_sizes,
    full_scale_sizes,
    named_sizes,
    points,
    sample_cost_share,
    share_weight,
    sizes_in_words,
    sizes_of_settings,
)
from hpo.study.spec import StudySpec
from storage.records import Trial, TrialState
from trainers.job import Question

Rung = tuple[int, Point]

DOUBLINGS = 8
MOST = 2.0  # size of the largest design, as a multiple of the study's own number of training runs
NARROWER = 0.01  # relative narrowing of the interval below which a design gets no row of its own
TAIL = 1.6448536269514722  # quantile of the normal distribution at the ends of a 90 % interval


@dataclass(frozen=True)
class Design:
    """A number of training runs over the ladder up to ``largest``, with their cost and expected information.

    ``cost`` is in units of one training run at full scale. ``hours`` is in accelerator hours of this study's workers,
    or None if no run was timed. ``interval`` is the interval of the epochs to target, or of the best metric, at full
    scale; ``factor`` is the ratio of its ends, in epochs or in the metric's shortfall. ``regret`` is the expected share
    by which the chosen settings would lengthen the training run at full scale. ``own`` marks the study's own design.
    """

    largest: Mapping[str, int]
    trainings: int
    cost: float
    hours: float | None
    interval: Interval
    factor: float
    regret: float
    own: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "largest": dict(self.largest),
            "trainings": self.trainings,
            "cost": self.cost,
            "accelerator_hours": self.hours,
            "interval": self.interval.to_dict(),
            "factor": self.factor,
            "regret": self.regret,
            "own": self.own,
        }


@dataclass(frozen=True)
class Designs:
    """The study's own design and alternative designs, ordered by cost; ``question`` says what the intervals describe.

    ``full_scale`` holds the batch size and the sizes of the forecast. :meth:`worthwhile` returns the designs that no
    cheaper design matches.
    """

    study: str
    question: Question
    full_scale: Mapping[str, int]
    all: tuple[Design, ...]

    @property
    def own(self) -> Design:
        """The study's own design."""
        return next(each for each in self.all if each.own)

    def worthwhile(self) -> list[Design]:
        """Return the study's own design and each design with a narrower interval than every cheaper one, cheapest
        first.
        """
        kept, narrowest = list[Design](), math.inf
        for each in self.all:
            narrower = math.log(each.factor) < (1 - NARROWER) * narrowest
            if narrower or each.own:
                kept.append(each)
            narrowest = min(narrowest, math.log(each.factor))
        return kept

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: what the intervals describe, and one object for each worthwhile design."""
        return {
            "study": self.study,
            "answer": self.question.answer,
            "within_epochs": self.question.epochs,
            "full_scale": dict(self.full_scale),
            "designs": [each.to_dict() for each in self.worthwhile()],
        }


def designs(result: StudyResult, made: StudyForecast | None = None) -> Designs:
    """Return the cost of training up to each size and batch size of the ladder, and the resulting interval at full
    scale.

    ``made`` is the forecast to narrow (default: the study's forecast for full scale). Raises :class:`EvidenceError` if
    the study has no full scale, or if no trial has a result.
    """
    if made is None:
        full = result.spec.full_scale
        if full is None:
            raise EvidenceError(
                f"study {result.study.name!r} needs a full_scale to estimate what its "
                f"training runs are worth there; add full_scale: {{global_batch_size: ...}}"
            )
        made = forecast(result, full.global_batch_size)
    if made.posterior is None:
        raise EvidenceError(
            "a forecast that was read from the storage has no laws; compute it again"
        )
    spec = result.spec
    ended = [
        trial
        for trial in result.swept
        if trial.state.finished and trial.state is not TrialState.FAILED and trial.epochs
    ]
    rungs = [(batch, point) for point in points(spec) for batch in result.batches]
    costs = _Costs(spec, ended, made)
    answered = sum(spec.question.need(trial) is not None for trial in ended)
    told_by = training_information(
        made.posterior,
        made.global_batch_size,
        [(batch, dict(point)) for batch, point in rungs],
        answered / max(len(ended), 1),
    )
    trained = Counter(_rung_of(spec, trial) for trial in ended)
    own = [trained[rung] for rung in rungs]
    told_by = told_by.scaled(own, recommendation_regret(made.posterior, made.global_batch_size))
    found = _Scaled(made, told_by, own)
    designs = [found.design(_largest(rungs, own), own, rungs, costs, own=True)]
    for largest, chosen in _choices(spec, rungs):
        least = sum(chosen)
        for doubling in range(DOUBLINGS):
            trainings = least * 2**doubling
            if trainings > MOST * sum(own):
                break
            counts = _shared_out(spec, rungs, chosen, trainings)
            designs.append(found.design(largest, counts, rungs, costs))
    by_cost = sorted(designs, key=lambda each: (each.cost, each.factor))
    return Designs(
        result.study.name,
        spec.question,
        {BATCH: made.global_batch_size, **named_sizes(full_scale_sizes(spec))},
        tuple(by_cost),
    )


def design_name(design: Design) -> str:
    """Return a design's largest sizes: ``width 64, samples 16384``, or ``batch 64`` if only the batch size varies."""
    sizes = dict(design.largest)
    batch = sizes.pop(BATCH)
    return sizes_in_words(tuple(sizes.items())) or f"batch {batch:,}"


class _Costs:
    """The cost of a training run at a rung: measured if the study trained there, otherwise proportional to its size."""

    def __init__(self, spec: StudySpec, ended: Sequence[Trial], made: StudyForecast) -> None:
        self._spec = spec
        self._full = made.epochs_to_target.median
        self._of: dict[Rung, list[Trial]] = {}
        for trial in ended:
            self._of.setdefault(_rung_of(spec, trial), []).append(trial)
        nominal = sum(len(each) * self._nominal(rung) for rung, each in self._of.items())
        spent = sum(self.cost(rung) * len(each) for rung, each in self._of.items())
        self._share = spent / nominal if nominal else 1.0
        timed = [trial for trial in ended if trial.seconds]
        seconds = math.fsum(trial.seconds or 0.0 for trial in timed)
        cost = math.fsum(self._cost_of(trial) for trial in timed)
        workers = spec.resources.workers
        self._hours = seconds * workers / 3600 / cost if cost else None

    def cost(self, rung: Rung) -> float:
        """Return the cost of a training run, in units of one run at full scale."""
        if rung in self._of:
            return statistics.fmean(self._cost_of(trial) for trial in self._of[rung])
        return self._share * self._nominal(rung)

    def hours(self, rung: Rung) -> float | None:
        """Return the worker hours of a training run; None if no run was timed."""
        if self._hours is None:
            return None
        timed = [trial.seconds for trial in self._of.get(rung, ()) if trial.seconds]
        if not timed:
            return self._hours * self.cost(rung)
        return statistics.fmean(timed) * self._spec.resources.workers / 3600

    def _cost_of(self, trial: Trial) -> float:
        share = self._sample(sizes_of_settings(self._spec, trial.settings))
        return (trial.epochs or 0.0) * share / self._full

    def _nominal(self, rung: Rung) -> float:
        """Return the cost of a training run of full length, or of as many epochs as at full scale."""
        whole = self._spec.question.fixed and self._spec.sizes
        return cost_share_of_sizes(self._spec, rung[1]) if whole else self._sample(rung[1])

    def _sample(self, point: Point) -> float:
        return sample_cost_share(self._spec, point) if self._spec.sizes else 1.0


class _Scaled:
    """The intervals of designs, scaled so that the study's own design has the interval of its forecast."""

    def __init__(
        self, made: StudyForecast, told_by: TrainingInformation, own: Sequence[float]
    ) -> None:
        self._told_by, self._question = told_by, made.spec.question
        numbers = made.numbers
        ends = numbers.best.interval if numbers.best else numbers.epochs_to_target
        needs = sorted(
            (self._question.shortfall(end) or 0.0) if numbers.best else end
            for end in (ends.low, ends.median, ends.high)
        )
        self._own = Interval(needs[1], needs[0], needs[2])
        low, self._median, high = (math.log(max(need, 1e-12)) for need in needs)
        self._times = (high - low) / (2 * TAIL * told_by.spread(own))

    def design(
        self,
        largest: Mapping[str, int],
        counts: Sequence[float],
        rungs: Sequence[Rung],
        costs: _Costs,
        *,
        own: bool = False,
    ) -> Design:
        half = TAIL * self._times * self._told_by.spread(counts)
        need = (
            self._own
            if own
            else Interval(
                *(math.exp(min(self._median + sign * half, 200.0)) for sign in (0, -1, 1))
            )
        )
        paid = [(rung, count) for rung, count in zip(rungs, counts, strict=True) if count]
        hours = [costs.hours(rung) for rung, _ in paid]
        timed = [each for each in hours if each is not None]
        return Design(
            largest,
            round(math.fsum(counts)),
            math.fsum(count * costs.cost(rung) for rung, count in paid),
            math.fsum(h * n for h, (_, n) in zip(timed, paid, strict=True))
            if len(timed) == len(paid)
            else None,
            told_interval(self._question, need) if self._question.fixed else need,
            math.exp(2 * half),
            math.expm1(self._told_by.regret(counts)),
            own,
        )


def _choices(
    spec: StudySpec, rungs: Sequence[Rung]
) -> Iterator[tuple[Mapping[str, int], list[bool]]]:
    """Return the ladder up to each of its combinations of sizes or, if only the batch size varies, up to each batch
    size.
    """
    if not spec.sizes:
        for most in sorted({batch for batch, _ in rungs}):
            yield {BATCH: most}, [batch <= most for batch, _ in rungs]
        return
    batch = max(batch for batch, _ in rungs)
    for corner in points(spec):
        chosen = [
            all(size <= most for (_, size), (_, most) in zip(point, corner, strict=True))
            for _, point in rungs
        ]
        yield {BATCH: batch, **named_sizes(corner)}, chosen


def _shared_out(
    spec: StudySpec, rungs: Sequence[Rung], chosen: Sequence[bool], trainings: int
) -> list[float]:
    """Distribute training runs over the rungs: one for each rung, the others in inverse proportion to the square root
    of the cost.
    """
    weights = [
        share_weight(spec, point) if each else 0.0
        for (_, point), each in zip(rungs, chosen, strict=True)
    ]
    free = trainings - sum(chosen)
    return [
        each + free * weight / math.fsum(weights)
        for each, weight in zip(chosen, weights, strict=True)
    ]


def _rung_of(spec: StudySpec, trial: Trial) -> Rung:
    return trial.global_batch_size, sizes_of_settings(spec, trial.settings)


def _largest(rungs: Sequence[Rung], counts: Sequence[float]) -> Mapping[str, int]:
    trained = [rung for rung, count in zip(rungs, counts, strict=True) if count]
    found = {BATCH: max(batch for batch, _ in trained)}
    for name in named_sizes(trained[0][1]):
        found[name] = max(named_sizes(point)[name] for _, point in trained)
    return found
