"""Progress of a study: its state, its trials by state, and the points of running trials.

Reading it takes a few small SQL statements, whatever the size of the study: only running trials are read individually,
and of their points only the newest, because one reader serves the event streams of all users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpo.service.answers import trial_answer_values
from hpo.service.study_facts import study_facts
from storage.errors import DamagedRow, NotFound
from storage.records import Study, StudyState, Trial, TrialState
from storage.store import Store

MOST_CHANGED = 50
NEWEST = ("step", "epochs", "seconds", "loss", "metric", "learning_rate", "global_batch_size")
AT_REST = frozenset(
    {StudyState.FINISHED, StudyState.FAILED, StudyState.CANCELLED, StudyState.INTERRUPTED}
)


@dataclass(frozen=True)
class StudyPosition:
    """The state of a study; an unchanged position is not sent again."""

    name: str
    owner: str
    state: StudyState
    cancel_requested: bool
    trials: Mapping[str, int]
    points: Mapping[int, int]

    @property
    def at_rest(self) -> bool:
        """Whether nothing more will happen unless somebody resumes the study."""
        return self.state in AT_REST


@dataclass(frozen=True)
class StudyProgress:
    """A position, the newest point of each running trial, and the trials that ended since the previous position."""

    study_id: int
    position: StudyPosition
    newest: tuple[Mapping[str, Any], ...]
    changed: tuple[Mapping[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; ``points`` counts the convergence points of each running trial, by trial number."""
        position = self.position
        return {
            "study": position.name,
            "state": position.state,
            "cancel_requested": position.cancel_requested,
            "trials": position.trials,
            "points": position.points,
            "newest": self.newest,
            "changed": self.changed,
        }


def running_studies(store: Store) -> dict[int, str]:
    """Return the names of the running studies, by id."""
    return {
        each.study.id: each.study.name
        for each in store.page_studies(state=StudyState.RUNNING, limit=200)
    }


def read_study_progress(
    store: Store, name: str, before: StudyPosition | None
) -> StudyProgress | None:
    """Return the progress of the study; None if the study no longer exists or its row is damaged."""
    try:
        study = store.study(name)
    except (NotFound, DamagedRow):
        return None
    states, running = _trials(store, study.id)
    points, counts = store.newest_points(list(running))
    newest = tuple(
        {
            "trial": running[trial].number,
            **{name: getattr(points, name)[at].item() for name in NEWEST},
        }
        for at, trial in enumerate(points.trial_id.tolist())
    )
    counted_points = {running[trial].number: count for trial, count in counts.items()}
    counted_points.update(
        {trial.number: 0 for trial in running.values() if trial.number not in counted_points}
    )
    position = StudyPosition(
        study.name, study.owner, study.state, study.cancel_requested, states, counted_points
    )
    return StudyProgress(study.id, position, newest, _changed(store, study, before, position))


def _trials(store: Store, study_id: int) -> tuple[dict[str, int], dict[int, Trial]]:
    """Return the number of trials per state and the running trials by id; both are read again if they disagree."""
    for _ in range(3):
        running = {trial.id: trial for trial in store.trials(study_id, states=[TrialState.RUNNING])}
        states: Counter[str] = Counter()
        for counted in store.counts(study_id).values():
            states.update({str(state): count for state, count in counted.items()})
        if states[TrialState.RUNNING] == len(running):
            break
    return dict(states), running


def _changed(
    store: Store, study: Study, before: StudyPosition | None, position: StudyPosition
) -> tuple[Mapping[str, Any], ...]:
    """Return the trials that ended since ``before``, at most ``MOST_CHANGED``; empty if ``before`` is None."""
    if before is None:
        return ()
    ended = sum(_ended(position.trials).values()) - sum(_ended(before.trials).values())
    if ended <= 0:
        return ()
    found = store.page_trials(
        study.id,
        limit=min(ended, MOST_CHANGED),
        order="finished_at",
        descending=True,
        states=[state for state in TrialState if state.finished],
    )
    facts = study_facts(study.spec)
    return tuple(
        trial_answer_values(trial, facts.sizes_of(trial.settings), with_settings=False)
        for trial in reversed(found)
    )


def _ended(trials: Mapping[str, int]) -> dict[str, int]:
    return {state: count for state, count in trials.items() if TrialState(state).finished}
