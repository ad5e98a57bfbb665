"""Progress of a long call, and the texts that all displays share: the rows of the ladder and the time left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpo.runs.formatting import format_answer
from hpo.study.samplers import SAMPLERS
from hpo.study.sizes import Point, budgets_by_sizes, rung_in_words, sizes_of_settings
from storage.records import TrialState

if TYPE_CHECKING:
    from hpo.planning.plan import Plan
    from hpo.study.price import StudyPrice
    from hpo.study.spec import StudySpec
    from storage.records import Trial
    from trainers.report import ConvergencePoint


class Progress:
    """Ignores all progress; a user interface overrides the methods for what it shows."""

    def message(self, text: str) -> None:
        """Show one line about the next step."""

    def price(self, spec: StudySpec, price: StudyPrice) -> None:
        """Show the upper bound on the cost of a study that is starting."""

    def sweep(
        self, spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Show all trials of the sweep after an event; ``running`` has the last convergence point of each running
        trial, by id.
        """

    def race(self, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """Show all trials of the race after an event; ``running`` has the last convergence point of each running trial,
        by id.
        """

    def run(self, plan: Plan, seed: int, point: ConvergencePoint) -> None:
        """Show an evaluation from the run of a launched plan."""


def ladder_columns(spec: StudySpec) -> tuple[str, ...]:
    """Return the column headings of :func:`ladder_rows`."""
    question = spec.question
    return (
        "batch size",
        "trials",
        "running",
        "to the end" if question.fixed else "reached",
        "stopped",
        question.answer if question.fixed else "best epochs",
        "at learning rate",
    )


def ladder_rows(
    spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """Return the results of each rung so far, one string for each of :func:`ladder_columns`."""
    question = spec.question
    of_rung: dict[tuple[int, Point], list[Trial]] = defaultdict(list)
    for trial in trials:
        of_rung[trial.global_batch_size, sizes_of_settings(spec, trial.settings)].append(trial)
    asked = {
        (batch, point): f"/{budget.trainings}"
        for point, budgets in budgets_by_sizes(spec).items()
        for batch, budget in budgets.items()
    }
    if SAMPLERS[spec.sampler].chooses_rung or spec.budget.ends_by_itself:
        # the sampler chooses the rung itself, so no rung has a fixed share of the trials
        asked = dict.fromkeys(sorted(of_rung, key=lambda rung: (rung[1], rung[0])), "")
    for (batch, point), of_them in asked.items():
        rung = of_rung[batch, point]
        ended = [trial for trial in rung if trial.state.finished]
        reached = [
            (need, trial.number, trial)
            for trial in ended
            if (need := question.need(trial)) is not None
        ]
        need, _, best = min(reached, default=(0.0, 0, None))
        now = ", ".join(
            f"{running[trial.id]['metric']:.3f}"
            for trial in rung
            if trial.state is TrialState.RUNNING and trial.id in running
        )
        yield (
            rung_in_words(batch, point),
            f"{len(ended)}{of_them}",
            now or "",
            str(len(reached)),
            str(len(ended) - len(reached)),
            "" if best is None else format_answer(question, need),
            f"{best.settings['learning_rate']:.3g}" if best else "",
        )


class TimeLeft:
    """Estimates how much longer a sweep will take, from the trials that have ended since the first call."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._already: int | None = None

    def of(self, ended: int, total: int) -> str:
        """Return the time left in words after ``ended`` of ``total`` trials."""
        if self._already is None:
            self._already = ended
        done = ended - self._already
        if done == 0:
            return "time left: unknown yet"
        elapsed = time.monotonic() - self._started
        return f"about {_duration(elapsed / done * (total - ended))} left"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
