"""A sweep over sizes of model or training length that chooses the rungs to train and ends when no further training run
is worth its cost.

The sweep starts with a few training runs at each batch size of the cheapest size, and one at each batch size of its
neighbours, the next size in every direction. Then the laws are fitted to the finished trials and predict by how much
one more run at each rung would lower the regret at full scale (:mod:`hpo.extrapolation.inference.information`). This
regret is the share by which the currently best settings are expected to lengthen the full-scale run. A run is worth its
cost if

    (regret now - regret after it) x the training at full scale  >  what the training itself costs

The runs with the largest savings per cost are trained, as many per round as the ladder has batch sizes, and the laws
are fitted again. If no run is worth its cost, the sweep ends. Its total cost never exceeds ``MOST_COST`` full-scale
runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.stored import study_evidence
from hpo.extrapolation.inference.information import TrainingInformation, training_information
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.recommend import recommendation_regret
from hpo.study.sizes import (
    Point,
    cost_share_of_sizes,
    full_scale_sizes,
    points,
    rung_in_words,
    sizes_of_settings,
    transferred_sizes,
)
from hpo.study.spec import StudySpec
from hpo.tuning.generation.strategy import ExploreSettings, SweepDone, WaitForTrainings
from storage.records import Trial, TrialState

# number of runs at each batch size of the cheapest size, and of the next size in every direction
FIRST, NEIGHBOUR = 4, 1
MOST_COST = 2.0  # in full-scale training runs
LEAST_SHARE = 0.25  # lower bound on the share of runs that finish, while few have ended

Rung = tuple[int, Point]


@dataclass(frozen=True)
class _Round:
    """The rungs to train in a round that started after ``before`` trials."""

    before: int
    rungs: tuple[Rung, ...]


class GrowingStrategy:
    """Decides what a study's sweep over sizes trains next; passes each decision to ``say`` as one line of text.

    Decisions depend only on the trials, so a resumed sweep repeats them once the trials in flight have ended.
    """

    def __init__(self, spec: StudySpec, say: Callable[[str], None] = lambda text: None) -> None:  # noqa: ARG005
        self._spec, self._say = spec, say
        self._points = points(spec)
        self._rungs = [(batch, point) for point in self._points for batch in spec.ladder]
        self._round: _Round | None = None
        self._why: tuple[int, str] | None = None

    @property
    def why_ended(self) -> str:
        """The reason why no further training run is worth its cost; "" before the sweep has ended."""
        return "" if self._why is None else self._why[1]

    def next(self, trials: Sequence[Trial]) -> ExploreSettings | WaitForTrainings | SweepDone:
        """Return the next training run of a sweep, given its ``trials`` in every state."""
        now = self._round
        if now is not None and now.before <= len(trials) < now.before + len(now.rungs):
            batch, point = now.rungs[len(trials) - now.before]
            return ExploreSettings(batch, point)
        if any(not trial.state.finished for trial in trials):
            return WaitForTrainings()
        if self._why is not None and self._why[0] == len(trials):
            return SweepDone()
        rungs, said = self._decide(trials)
        if not rungs:
            self._why = len(trials), said
            return SweepDone()
        if said:
            self._say(said)
        self._round = _Round(len(trials), tuple(rungs))
        return ExploreSettings(*rungs[0])

    def _decide(self, trials: Sequence[Trial]) -> tuple[list[Rung], str]:
        """Return the rungs of the next round and the reason for them, or no rungs and why the sweep has ended."""
        counts = Counter(self._rung(trial) for trial in trials)
        first = self._first(counts)
        if first:
            return first, ""
        spent = math.fsum(
            cost_share_of_sizes(self._spec, point) * n for (_, point), n in counts.items()
        )
        room = self._spec.budget.trials - len(trials)
        if room <= 0:
            return [], f"the sweep has ended after {len(trials)} trials, the maximum number"
        answered = [t for t in trials if self._spec.question.need(t) is not None]
        if not answered:
            return self._unanswered(counts)
        try:
            told = self._told(trials, len(answered), counts)
        except EvidenceError as error:
            return [], f"the sweep has ended after {len(trials)} trials: {error}"
        return self._worthwhile(told, counts, spent, room, len(trials))

    def _first(self, counts: Counter[Rung]) -> list[Rung]:
        """Return the rungs that the initial round has not trained yet, cheapest first."""
        cheapest = self._points[0]
        asked = {cheapest: FIRST}
        for index, (name, size) in enumerate(cheapest):
            larger = sorted(
                {dict(point)[name] for point in self._points if dict(point)[name] > size}
            )
            if larger:
                neighbour = (*cheapest[:index], (name, larger[0]), *cheapest[index + 1 :])
                asked[neighbour] = NEIGHBOUR
        return [
            (batch, point)
            for point in self._points
            for batch in self._spec.ladder
            for _ in range(asked.get(point, 0) - counts[batch, point])
        ]

    def _unanswered(self, counts: Counter[Rung]) -> tuple[list[Rung], str]:
        """Return the untrained rungs of the cheapest size, if no training run so far has given a result."""
        for point in self._points:
            rungs = [(batch, point) for batch in self._spec.ladder if not counts[batch, point]]
            if rungs:
                return rungs, (
                    f"no run has given a result at smaller sizes yet: {_named(rungs)} next"
                )
        return [], ("the sweep has ended: no run gave a result at any size of the ladder")

    def _told(
        self, trials: Sequence[Trial], answered: int, counts: Counter[Rung]
    ) -> TrainingInformation:
        spec, full = self._spec, self._spec.full_scale
        assert full is not None, "a ladder of sizes has a full scale"
        evidence = study_evidence(
            trials,
            spec.search,
            question=spec.question,
            full_scale=dict(full_scale_sizes(spec)),
            carried=transferred_sizes(spec),
        )
        ended = sum(trial.state is not TrialState.FAILED for trial in trials)
        posterior = fit(evidence, rng=np.random.default_rng(0))
        told = training_information(
            posterior,
            full.global_batch_size,
            [(batch, dict(point)) for batch, point in self._rungs],
            max(answered / max(ended, 1), LEAST_SHARE),
        )
        many = [counts[rung] for rung in self._rungs]
        return told.scaled(many, recommendation_regret(posterior, full.global_batch_size))

    def _worthwhile(
        self, told: TrainingInformation, counts: Counter[Rung], spent: float, room: int, trials: int
    ) -> tuple[list[Rung], str]:
        """Return up to one round of training runs that save more than they cost, chosen by savings per cost."""
        many = [float(counts[rung]) for rung in self._rungs]
        costs = [cost_share_of_sizes(self._spec, point) for _, point in self._rungs]
        begun, chosen, cost = told.regret(many), list[int](), 0.0
        now = begun
        last = ""
        while len(chosen) < min(len(self._spec.ladder), room):
            saved = [now - told.regret(_with_one(many, index)) for index in range(len(many))]
            best = max(range(len(many)), key=lambda index: saved[index] / costs[index])
            last = (
                f"one more at {rung_in_words(*self._rungs[best])} costs {costs[best]:.2g} and is expected to save "
                f"{saved[best]:.2g} of the training at full scale"
            )
            if saved[best] <= costs[best]:
                break
            if spent + cost + costs[best] > MOST_COST:
                last = f"it has cost {spent + cost:.2g} of the training at full scale, and may cost {MOST_COST:g}"
                break
            many[best] += 1
            now, cost = now - saved[best], cost + costs[best]
            chosen.append(best)
        if not chosen:
            return [], (
                f"the sweep has ended by itself after {trials} trials, {spent:.2g} of the training at full scale: "
                f"{last}"
            )
        rungs = [self._rungs[index] for index in sorted(chosen)]
        return rungs, (
            f"{_named(rungs)} next: {cost:.2g} of the training at full scale, expected to save {begun - now:.2g} of it"
        )

    def _rung(self, trial: Trial) -> Rung:
        return trial.global_batch_size, sizes_of_settings(self._spec, trial.settings)


def _with_one(counts: Sequence[float], index: int) -> list[float]:
    return [count + (at == index) for at, count in enumerate(counts)]


def _named(rungs: Sequence[Rung]) -> str:
    """Format rungs as ``2 at 16, width 32; 1 at 32, width 32``."""
    return "; ".join(f"{many} at {rung_in_words(*rung)}" for rung, many in Counter(rungs).items())
