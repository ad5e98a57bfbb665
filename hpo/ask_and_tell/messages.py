"""The messages between a client that trains a trial and the keeper of its study: a local database, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainers.job import TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome

LEASE_SECONDS = 60.0
"""After so long without a sign of its holder, a trial is given to another."""

RUNNING = "running"
QUEUED = "queued"


@dataclass(frozen=True)
class Asked:
    """The answer to who asked for a trial.

    ``number`` and ``job`` are those of the trial; None while every trial that is left depends on others that run, so
    that asking again after ``wait_seconds`` may help, and where the study has ``ended``, as ``message`` says.
    """

    number: int | None = None
    job: TrainingJob | None = None
    ended: bool = False
    wait_seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer to a report: the trial goes on while ``state`` is running; else it is to stop, for this ``reason``.

    ``pruned`` trials have ended, and nothing is to be told of them any more; a ``queued`` one went back into the
    queue, such as that of a study that was cancelled.
    """

    state: str = RUNNING
    reason: str = ""

    @property
    def stop(self) -> bool:
        """Whether the training is to stop."""
        return self.state != RUNNING


class Channel(Protocol):
    """The four calls about a trial. Each may be repeated: what arrives twice counts once.

    ``key`` is a text that the asker makes up for each trial that it asks for, and that nobody else knows. All but
    :meth:`ask` raise :class:`hpo.errors.TrialLostError` where the trial is no longer the key's.
    """

    def ask(self, key: str, holder: str, lease_seconds: float) -> Asked:
        """A trial to train; ``holder`` names the asker for people to read."""

    def report(
        self, number: int, key: str, points: Sequence[ConvergencePoint], lease_seconds: float
    ) -> Verdict:
        """Convergence points, or none: a sign of life."""

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
        """The last points and how the trial ended, by the outcome, the state or the points; the state as stored."""

    def release(self, number: int, key: str) -> None:
        """Back into the queue: somebody else trains it."""
