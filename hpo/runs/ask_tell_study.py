"""Ask and tell for a study in the database: hands out its trials to clients that ask, and stores their results.

Each trial is held under its own lease (``storage.statements.trial_leases``). Its holder reports while it trains, and
may disappear at any time. If it does, the trial goes back into the queue, and the next client that asks trains it, from
its checkpoint if that is readable. After ``LOST_HOLDERS`` lost holders the trial counts as failed, because the trial
itself may be what kills them. All state is in the database: several processes may serve one study, and a process that
restarts continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hpo.ask_and_tell.ending import outcome_of
from hpo.ask_and_tell.messages import QUEUED, Asked, ReportVerdict
from hpo.errors import FigureError, TrialLostError, TuningError
from hpo.runs.losses import metric_range_advice, outcome_words
from hpo.runs.repository import stored_spec
from hpo.study.restart_limits import LOST_HOLDERS
from hpo.study.samplers import SAMPLERS
from hpo.tuning.asked_sweep import AskedSweep, SuggestedTrial
from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.trial_writer import result_of_trial
from storage.errors import LeaseLost
from storage.figures import fault_of_points, fault_of_reached
from storage.records import ConvergencePoint, Study, StudyState, Trial, TrialLease, TrialState
from storage.store import Store
from trainers.report import ConvergencePoint as ReportedPoint
from trainers.report import TrainingOutcome, is_within_budget

WAIT_SECONDS = 1.0
"""Seconds after which a client should ask again while all remaining trials depend on running ones."""

LOOK_SECONDS = 1.0
"""Minimum number of seconds between two checks for holders that stopped responding."""

EVENT_SECONDS = 5.0
"""Minimum number of seconds between two entries in a study's log that count its trials."""

ATTEMPTS = 8
"""How often a request for a trial is retried if other clients took the trial first."""


class AskTellStudy:
    """One study in ask-and-tell mode; threads may share it. Errors from the store are passed on unchanged."""

    def __init__(self, store: Store, study: Study) -> None:
        self._store, self.study = store, study
        self._spec = stored_spec(study)
        self._sweep = AskedSweep(self._spec, study, store)
        self._lock = threading.RLock()
        # holders could not renew their leases while no process served the study, so they get one lease period to return
        held = store.leased_trials(study.id)
        self._expiring_from = time.monotonic() + max((each.seconds for each in held), default=0.0)
        self._looked_at = self._told_at = 0.0
        self._told: Counter[str] = Counter()

    def reopen(self) -> None:
        """Let a finished study hand out trials again if it has some left to train, because its budget was raised."""
        finished = self.study.state is StudyState.FINISHED
        if finished and not self._sweep.spent and not self._sweep.complete:
            self._store.reopen_study(self.study.id, "it has more trials to train")

    def ask(self, key: str, holder: str, lease_seconds: float) -> Asked:
        """Return a trial under a lease; the same key always gets the same trial. Raises
        :class:`storage.errors.Conflict` if a worker runs the study or the study was cancelled, and :class:`TuningError`
        if its first trials all failed.
        """
        with self._lock:
            study = self._store.study_by_id(self.study.id)
            again = self._store.leased_trial(self.study.id, key)
            if again is not None and not again.trial.state.finished:
                return self._asked(again)
            if study.state is StudyState.FINISHED:
                return self._ended(study)
            self._expire()
            for attempt in range(ATTEMPTS):
                answer = self._try(key, holder, lease_seconds, again=attempt > 0)
                if answer is not None:
                    return answer
        return Asked(wait_seconds=WAIT_SECONDS, message="other clients took the trials first")

    def report(
        self, number: int, key: str, points: Sequence[ReportedPoint], lease_seconds: float
    ) -> ReportVerdict:
        """Store points and renew the trial's lease; return whether the trial should continue."""
        stored = [_stored(point) for point in points]
        if stored:
            self._check(number, key, stored)
        with _lost():
            held = self._store.renew_trial(
                self.study.id, number, key, lease_seconds=lease_seconds, points=stored
            )
        with self._lock:
            if stored:
                self._sweep.check_budget()
            reason = self._sweep.judge(held.trial, stored) if stored else ""
            if reason:
                trial = self._end(held, [], None, TrialState.PRUNED, reason)
                return ReportVerdict(str(trial.state), trial.reason)
            study = self._store.study_by_id(self.study.id)
            spent = "" if self._sweep.has_completed(held.trial) else self._sweep.spent
            if study.state is not StudyState.RUNNING or spent:
                self.release(number, key)
                return ReportVerdict(QUEUED, spent or f"study {study.name!r} is {study.state}")
        return ReportVerdict()

    def end(
        self,
        number: int,
        key: str,
        points: Sequence[ReportedPoint] = (),
        *,
        outcome: TrainingOutcome | None = None,
        state: str | None = None,
        reason: str = "",
    ) -> Trial:
        """Store a trial's last points and how it ended, as given by outcome, state or points; later reports of its end
        are ignored.

        Raises :class:`TuningError` for a state that is not final or contradicts the points, and for an end without any
        evaluation.
        """
        held = self._store.leased_trial(self.study.id, key)
        if held is None or held.trial.number != number:
            raise TrialLostError(
                f"trial {number} is no longer yours: it went back into the queue; ask for another"
            )
        if held.trial.state.finished:
            return held.trial
        chosen = None if state is None else _end_state(state)
        stored = [_stored(point) for point in points]
        if stored:
            self._check(number, key, stored)
        return self._end(held, stored, outcome, chosen, reason)

    def release(self, number: int, key: str) -> Trial:
        """Put a trial back into the queue."""
        with _lost():
            trial = self._store.release_trial(self.study.id, number, key)
        with self._lock:
            if not trial.state.finished:
                self._sweep.gone(trial)
        return trial

    def _check(self, number: int, key: str, points: Sequence[ConvergencePoint]) -> None:
        """Raise :class:`TuningError` for points that do not continue a curve of this trial."""
        held = self._store.leased_trial(self.study.id, key)
        if held is None or held.trial.number != number:
            return  # the write itself raises the error
        changing = self._spec.program is not None or (
            held.trial.settings["batch_control"] != "constant"
        )
        batch = None if changing else held.trial.global_batch_size
        fault = fault_of_points(points, global_batch_size=batch)
        if not fault:  # only now is the step a number that the database can compare
            before = self._store.point_before(held.trial.id, points[0].step)
            fault = fault_of_points(points[:1], before=before)
        if fault:
            raise FigureError(f"trial {number}: {fault}")

    def _try(self, key: str, holder: str, lease_seconds: float, *, again: bool) -> Asked | None:
        """Make one attempt to answer a client; return None if another client was faster. After that, trials are read
        ``again`` even if their counts are the same.
        """
        self._sweep.look(again=again)
        self._sweep.check_budget()
        if self._sweep.spent:
            return self._spent()
        what = self._next()
        if what is None or isinstance(what, SweepDone):
            ended = None if what is None else self._conclude()
            return ended or Asked(wait_seconds=WAIT_SECONDS, message=_WAITING)
        held = self._lease(what, key, holder, lease_seconds)
        return None if held is None else self._asked(held)

    def _end(
        self,
        held: TrialLease,
        points: Sequence[ConvergencePoint],
        outcome: TrainingOutcome | None,
        state: TrialState | None,
        reason: str,
    ) -> Trial:
        before = points[0].step if points else math.inf  # as the store keeps them
        stored = [each for each in self._store.points(held.trial.id) if each.step < before]
        curve = [*stored, *points]
        if outcome is None and state is not TrialState.PRUNED:
            outcome = self._inferred(held.trial, curve, state)
        if outcome is not None and outcome.state == TrialState.REACHED:
            self._check_reached(held.trial, outcome, curve)
        last = curve[-1] if curve else None
        resolution = last.epochs - (curve[-2].epochs if len(curve) > 1 else 0.0) if last else None
        result = result_of_trial(
            state or TrialState(outcome.state if outcome else ""),
            outcome.to_dict() if outcome else None,
            last,
            resolution,
            reason,
        )
        with _lost():
            trial = self._store.finish_leased_trial(
                self.study.id, held.trial.number, held.key, result, points
            )
        with self._lock:
            self._sweep.ended(trial, curve)
            self._count()
            if self._sweep.complete:
                self._conclude()
        return trial

    def _inferred(
        self, trial: Trial, curve: Sequence[ConvergencePoint], state: TrialState | None
    ) -> TrainingOutcome | None:
        """Return the outcome according to the curve, under the ``state`` that the client gave, if it gave one; None if
        it gave one and the trial has no evaluation.
        """
        found = outcome_of(curve, self._spec.target)
        if found is not None and self._spec.question.fixed:
            budget = self._sweep.job(trial).epochs
            within = outcome_of(
                [each for each in curve if is_within_budget(each, budget)], self._spec.target
            )
            best = math.nan if within is None else within.best_metric
            fault = self._spec.question.metric_fault(best) if found.state == "censored" else ""
            reason = "; ".join(filter(None, (found.reason, fault)))
            found = dataclasses.replace(found, best_metric=best, reason=reason)
        if state is None and found is None:
            raise TuningError(
                f"trial {trial.number} has no evaluation: report at least one, or "
                f"report that it failed"
            )
        if found is not None:
            found = dataclasses.replace(found, measures=self._measures(curve[-1]))
        if state is None or found is None or state == found.state:
            return found
        if state is TrialState.CENSORED and found.state == TrialState.REACHED:
            raise FigureError(
                f"trial {trial.number}: the state must not be censored, because the evaluation after "
                f"{found.epochs_to_target:g} epochs reached the target; leave the state out"
            )
        return dataclasses.replace(found, state=str(state), epochs_to_target=None, reason="")

    def _measures(self, last: ConvergencePoint) -> dict[str, float]:
        """Return the metrics besides the target's that the last evaluation of a curve holds: its loss, if measured."""
        known = self._spec.target.metric != "loss" and math.isfinite(last.loss)
        return {"loss": last.loss} if known else {}

    def _check_reached(
        self, trial: Trial, outcome: TrainingOutcome, curve: Sequence[ConvergencePoint]
    ) -> None:
        """Raise :class:`FigureError` if the outcome is ``reached`` but no evaluation of the trial reached the
        target.
        """
        at = outcome.epochs_to_target or 0.0
        if fault := fault_of_reached(at, outcome.epochs):
            raise FigureError(f"trial {trial.number}: {fault}")
        if not any(
            math.isclose(point.epochs, at, rel_tol=1e-6) and self._spec.target.reached(point.metric)
            for point in curve
        ):
            raise FigureError(
                f"trial {trial.number}: epochs_to_target must be the epochs of an evaluation "
                f"that reached the target, but none of its {len(curve)} evaluations up to "
                f"{at:g} epochs did; report that evaluation first"
            )

    def _next(self) -> Trial | SuggestedTrial | SweepDone | None:
        try:
            return self._sweep.next()
        except TuningError as error:
            self._store.set_study_state(self.study.id, StudyState.FAILED, str(error))
            self._store.add_event(self.study.id, "failed", str(error))
            raise

    def _lease(
        self, what: Trial | SuggestedTrial, key: str, holder: str, lease_seconds: float
    ) -> TrialLease | None:
        suggested = what if isinstance(what, SuggestedTrial) else None
        held = None
        try:
            held = self._store.lease_trial(
                self.study.id,
                what.new if isinstance(what, SuggestedTrial) else what.number,
                known=len(self._sweep.trials),
                key=key,
                holder=holder,
                lease_seconds=lease_seconds,
            )
        finally:
            new = held is not None and held.trial.id not in {each.id for each in self._sweep.trials}
            if suggested is not None and not new:
                self._sweep.forget(suggested)
        if held is not None and not held.trial.state.finished:
            self._sweep.began(held.trial, suggested if new else None)
        return held

    def _asked(self, held: TrialLease) -> Asked:
        return Asked(number=held.trial.number, job=self._sweep.job(held.trial))

    def _expire(self) -> None:
        """Take back trials whose holders stopped responding."""
        now = time.monotonic()
        if now < self._expiring_from or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for trial in self._store.expire_trial_leases(self.study.id, LOST_HOLDERS):
            self._store.add_event(
                self.study.id,
                "vanished",
                f"the holder of trial {trial.number} stopped responding; the trial is {trial.state} now",
                {"trial": trial.number},
            )
            if trial.state.finished:
                self._sweep.ended(trial, self._store.points(trial.id))
            else:
                self._sweep.gone(trial)

    def _ended(self, study: Study) -> Asked:
        return Asked(ended=True, message=study.message or f"study {study.name!r} is {study.state}")

    def _spent(self) -> Asked:
        """End a study whose budget is used up; running trials go back into the queue at their next report."""
        if not any(trial.state is TrialState.RUNNING for trial in self._sweep.trials):
            self._finish(self._sweep.spent)
        return Asked(ended=True, message=self._sweep.spent)

    def _conclude(self) -> Asked | None:
        """Finish the study and return the answer if all of its trials have ended; otherwise return None."""
        if not self._sweep.complete:
            return None
        batch = self._spec.race_batch
        race = (
            ""
            if batch is None or SAMPLERS[self._spec.sampler].chooses_rung
            else f"; to race at {batch}, use `hpo run` with the study file, or `hpo forecast "
            f"--race`"
        )
        question, trials = self._spec.question, self._store.trials(self.study.id)
        answered = any(question.need(trial) is not None for trial in trials)
        fault = "" if answered else metric_range_advice(trials, question)
        self._finish(
            f"all {len(self._sweep.trials)} trials have ended; "
            + (
                f"no trial {outcome_words(question, trials)}: no forecast; {fault}"
                if fault
                else f"continue with `hpo forecast` and `hpo plan`{race}"
            )
        )
        return self._ended(self._store.study_by_id(self.study.id))

    def _finish(self, message: str) -> None:
        if self._store.study_by_id(self.study.id).state is StudyState.RUNNING:
            self._count(always=True)
            self._store.set_study_state(self.study.id, StudyState.FINISHED, message)
            self._store.add_event(self.study.id, "finished", message)

    def _count(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._told_at < EVENT_SECONDS:
            return
        self._told_at = now
        states = Counter(str(trial.state) for trial in self._sweep.finished_trials)
        if states == self._told:
            return
        self._told = states
        of_them = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        self._store.add_event(
            self.study.id,
            "trials",
            f"{self._spec.budget.counted(states.total())} have ended"
            f"{f': {of_them}' if of_them else ''}",
            dict(states),
        )


_WAITING = "all remaining trials depend on trials that are still running"


def _stored(point: ReportedPoint) -> ConvergencePoint:
    return ConvergencePoint(**dataclasses.asdict(point))


def _end_state(state: str) -> TrialState:
    ends = [TrialState.CENSORED, TrialState.DIVERGED, TrialState.FAILED]
    if state not in ends:
        raise TuningError(
            f"the state of a trial must be one of {', '.join(ends)}, or omitted, but got {state!r}"
        )
    return TrialState(state)


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except LeaseLost as error:
        raise TrialLostError(str(error)) from error
