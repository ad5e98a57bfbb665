"""``sampler: forecast``: picks the trials that give the most information about the full-scale batch size per sample.

The search (:mod:`hpo.tuning.generation.search`) trains at the full-scale batch size itself, or on the largest rungs if
the study says ``budget: {race: 0}`` or if the target is too far away at full scale. It chooses the scaled settings and
how long to train them, and ends by itself. Settings with the role ``shared`` are left to Optuna's TPE over all batch
sizes. A study that scales a categorical setting, which the laws cannot extrapolate, is searched by TPE throughout, rung
by rung.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpo.extrapolation.evidence.stored import tuned_settings_of_space
from hpo.study.spec import StudySpec
from hpo.tuning.generation.samplers import Curve, LadderSampler, Sampler, no_curve
from hpo.tuning.generation.search import SHARED_EXPONENT, SearchStep, SeenTraining, SettingsSearch
from search_spaces.settings import TrainingSettings
from search_spaces.techniques import described_optimizer
from storage.records import ConvergencePoint, Trial, TrialPurpose, TrialState

BEYOND = 8
"""The batch size to find settings for if a study names no full-scale batch size, in multiples of its largest rung."""

TURN = 3
"""Number of trials after which a study that is searched by TPE moves to the next rung."""

IN_THE_LOSS = {"label_smoothing", "class_weighting"}
"""Settings that change the loss function: if one is tuned, losses of different runs are not comparable."""

STATES = {
    TrialState.REACHED: "reached",
    TrialState.DIVERGED: "diverged",
    TrialState.CENSORED: "censored",
    TrialState.PRUNED: "paused",
    TrialState.FAILED: "failed",
}


class ForecastSampler:
    """Suggests batch size and settings together; rebuilt from the trials of a study, like every sampler in this
    package.
    """

    def __init__(self, spec: StudySpec, earlier: int = 0) -> None:
        self._ladder, self._space = spec.ladder, spec.search
        self._epochs = spec.budget.epochs_per_trial
        self._target = target = (
            spec.full_scale.global_batch_size if spec.full_scale else BEYOND * spec.ladder[-1]
        )
        trained = [*spec.ladder, *([spec.race_batch] if spec.race_batch else [])]
        self._inner = LadderSampler(
            spec.search,
            trained,
            sampler="tpe",
            name=spec.name,
            epochs=self._epochs,
            earlier=earlier,
        )
        self._trained = set(trained)
        tuned = tuned_settings_of_space(spec.search)
        self._by_laws = bool(tuned) and len(tuned) == len(self._space.scaled)
        self._search = SettingsSearch(
            trained,
            target,
            tuned,
            most_epochs=self._epochs,
            resolution=1 / spec.budget.evaluations_per_epoch,
            goal=spec.target.threshold,
            higher_is_better=spec.target.higher_is_better,
            rate_exponent=_rate_exponent(spec),
            seed=int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big"),
        )
        self._by_loss = not IN_THE_LOSS & set(self._space.domains)
        self._seen: dict[int, SeenTraining] = {}
        self._told = self._own = 0
        self._trials = spec.budget.trials
        self._steps: dict[int, SearchStep] = {}
        self._step: tuple[object, SearchStep | None] | None = None

    def ended(self, running: Sequence[Trial]) -> bool:
        """Return whether no further trial is worth its cost, as far as is known while ``running`` are in flight."""
        return self._by_laws and self._next(running) is None

    def suggest(
        self,
        global_batch_size: int | None = None,  # noqa: ARG002  it is chosen here
        running: Iterable[Trial] = (),
    ) -> tuple[int, TrainingSettings, int]:
        """Return the batch size and settings to train next, with a ticket; ``running`` are the trials in flight.

        Only call this while the search has not :meth:`ended`.
        """
        step = self._next(tuple(running)) if self._by_laws else None
        if step is None:
            return self._inner.suggest(self._ladder[self._told // TURN % len(self._ladder)])

        def choose(_: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
            return step.global_batch_size, {
                name: self._space.domains[name].clip(value) for name, value in step.settings.items()
            }

        batch, settings, ticket = self._inner.suggest_by(choose)
        self._steps[ticket] = step
        return batch, settings, ticket

    def began(self, trial: Trial) -> None:
        """Register an unfinished trial from an earlier run."""
        self._inner.began(trial)

    def queue_rest_of(self, before: Sampler, trials: Sequence[Trial]) -> None:
        """Queue the first settings that TPE had queued in the sampler ``before``, except those of ``trials``."""
        if isinstance(before, ForecastSampler):
            self._inner.queue_rest_of(before._inner, trials)

    def forget(self, ticket: int, global_batch_size: int) -> None:
        """Discard a suggestion."""
        self._inner.forget(ticket, global_batch_size)

    def tell(self, trial: Trial, ticket: int | None = None, curve: Curve = no_curve) -> None:
        """Learn from a finished trial and its curve; TPE ignores a trial at a batch size that the study no
        longer has.
        """
        self._told += 1
        self._own += trial.purpose != TrialPurpose.IMPORTED
        if trial.global_batch_size in self._trained:
            self._inner.tell(trial, ticket)
        if trial.state in STATES:
            self._seen[trial.number] = self._as_seen(trial, curve())

    def limit_epochs(self, global_batch_size: int, ticket: int | None = None) -> float:
        """Return the epochs after which a trial may stop; for a suggestion, the epochs of its step."""
        if ticket in self._steps:
            return min(self._steps[ticket].until_epochs, self._epochs)
        if not self._by_laws:
            return self._epochs
        return min(self._search.limit_epochs(self._in_order(), global_batch_size), self._epochs)

    def reason(self, ticket: int | None) -> str:
        """Return why a suggestion was made if it is a short look; without a ticket, return why the search has ended."""
        if ticket is None:
            return self._why_ended()
        step = self._steps.get(ticket)
        return step.reason if step is not None and not step.whole else ""

    def _why_ended(self) -> str:
        """Return why the search ended by itself, the gain from one more training run, and the best choice if no run
        reached the target.
        """
        if not self._by_laws:
            return ""
        said, seen = [], self._in_order()
        if self._own < self._trials and self._next(()) is None:
            step = self._search.forgone(seen)
            more = "" if step is None else f"; one more run {step.reason.partition(': it ')[2]}"
            said.append(f"the search has ended by itself after {self._own} trials{more}")
        largest = max(self._trained)
        arrived = {each.global_batch_size for each in seen if each.state == "reached"}
        if arrived and max(arrived) < largest:
            said.append(
                f"no run has reached the target at {largest} within {self._epochs:g} "
                f"epochs, so the search continued at {', '.join(map(str, sorted(arrived)))}; "
                f"if runs there may need longer, raise epochs_per_trial"
            )
        elif not arrived:
            best = self._search.recommendation(seen).items()
            named = ", ".join(f"{name} {value:.3g}" for name, value in best)
            said.append(
                f"no run has reached the target at {largest}; according to the runs so far, the "
                f"best choice at {self._target} is {named}"
            )
        return "; ".join(said)

    def _next(self, running: Sequence[Trial]) -> SearchStep | None:
        in_flight = tuple(sorted(trial.number for trial in running))
        key = (self._told, in_flight)
        if self._step is None or self._step[0] != key:
            flying = (self._as_seen(trial, (), "running") for trial in running)
            seen = [*self._in_order(), *flying]
            self._step = key, self._search.next(seen, self._trials - self._own - len(in_flight))
        return self._step[1]

    def _in_order(self) -> list[SeenTraining]:
        return [self._seen[number] for number in sorted(self._seen)]

    def _as_seen(
        self, trial: Trial, points: Sequence[ConvergencePoint], state: str = ""
    ) -> SeenTraining:
        whole = [point for point in points if point.metric is not None]
        return SeenTraining(
            trial.number,
            trial.global_batch_size,
            trial.settings,
            trial.seed,
            [point.epochs for point in whole] or ([trial.epochs] if trial.epochs else []),
            [float(point.metric) for point in whole],
            state or STATES[trial.state],
            trial.epochs_to_target,
            [float(point.loss) for point in whole] if self._by_loss else (),
        )


def _rate_exponent(spec: StudySpec) -> float:
    """Return how fast the best learning rate of the study's optimizer is assumed to grow with the batch size."""
    described = described_optimizer(str(spec.search.fixed.get("optimizer", "")))
    known = described.rate_exponent if described is not None else None
    return known[0] if known else SHARED_EXPONENT
