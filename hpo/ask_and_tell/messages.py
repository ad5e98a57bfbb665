"""The messages between a client that trains a trial and the store of its study: a local database or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainers.job import TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome

LEASE_SECONDS = 60.0
"""Seconds without a heartbeat after which a trial is given to another client."""

RUNNING = "running"
QUEUED = "queued"


@dataclass(frozen=True)
class Asked:
    """The answer to a request for a trial.

    ``number`` and ``job`` describe the trial. They are None if the study has ``ended``, for the reason in ``message``,
    or while every remaining trial depends on running ones; in that case, ask again after ``wait_seconds``.
    """

    number: int | None = None
    job: TrainingJob | None = None
    ended: bool = False
    wait_seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class ReportVerdict:
    """The answer to a report: the trial continues while ``state`` is ``running``; otherwise it must stop, for this
    ``reason``.

    ``pruned`` trials have ended and accept no more reports; a ``queued`` one went back into the queue, for example
    because its study was cancelled.
    """

    state: str = RUNNING
    reason: str = ""

    @property
    def stop(self) -> bool:
        """Whether the run must stop."""
        return self.state != RUNNING


class Channel(Protocol):
    """The four calls that concern a trial, all of which are idempotent.

    ``key`` is a secret string that the client generates for each trial that it asks for. All but :meth:`ask` raise
    :class:`hpo.errors.TrialLostError` if the trial no longer belongs to the key.
    """

    def ask(self, key: str, holder: str, lease_seconds: float) -> Asked:
        """Return a trial to train; ``holder`` is a readable name for the client."""

    def report(
        self, number: int, key: str, points: Sequence[ConvergencePoint], lease_seconds: float
    ) -> ReportVerdict:
        """Report convergence points; an empty report is a heartbeat."""

    def end(
        self,
        number: int,
        key: str,
        points: Sequence[ConvergencePoint],
        *,
        outcome: TrainingOutcome | None,
        state: str | None,
        reason: str,
    ) -> str:
        """Report the last points and how the trial ended, by outcome, state or points; return the stored state."""

    def release(self, number: int, key: str) -> None:
        """Put the trial back into the queue for another client."""
