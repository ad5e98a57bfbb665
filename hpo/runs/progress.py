"""What a long call tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo.planning.plan import Plan
    from hpo.study.price import StudyPrice
    from hpo.study.spec import StudySpec
    from storage.records import Trial
    from trainers.report import ConvergencePoint


class Progress:
    """Hears nothing; a face that shows something overrides what it shows."""

    def message(self, text: str) -> None:
        """One line about what happens next."""

    def price(self, spec: StudySpec, price: StudyPrice) -> None:
        """What a study that begins now takes at most."""

    def sweep(
        self, spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """All trials of the sweep after an event, and the last convergence point of those that run, by trial id."""

    def race(self, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """All trials of the race after an event, and the last convergence point of those that run, by trial id."""

    def run(self, plan: Plan, seed: int, point: ConvergencePoint) -> None:
        """A launched plan was evaluated."""
