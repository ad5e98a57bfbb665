"""Shows progress on stderr: a ladder redrawn in place on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpo.cli.output.style import new_table
from hpo.runs.formatting import KIND_NAMES
from hpo.runs.progress import Progress, TimeLeft, ladder_columns, ladder_rows
from hpo.study.sizes import rung_in_words, sizes_of_settings
from storage.records import TrialState

if TYPE_CHECKING:
    from hpo.planning.plan import Plan
    from hpo.study.price import StudyPrice
    from hpo.study.spec import StudySpec
    from storage.records import Trial
    from trainers.report import ConvergencePoint


class _TellsPrice(Progress):
    """Prints the cost of a study on stderr, above other output."""

    def price(self, spec: StudySpec, price: StudyPrice) -> None:
        """Print the expected cost, one sentence per line."""
        from hpo.cli.output import prices

        for line in prices.lines(price, spec):
            self.print_line(line)

    def print_line(self, text: str) -> None:
        """Print one line that is not overwritten."""
        raise NotImplementedError


class LiveProgress(_TellsPrice):
    """Draws the ladder, rung by rung, and the progress of launched runs in place on a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._left = TimeLeft()
        self._ladder: Table | None = None
        self._line = Text("starting")

    def print_line(self, text: str) -> None:
        """Print the line above the ladder."""
        self._live.console.print(text, highlight=False)

    def message(self, text: str) -> None:
        """Show one line below the ladder."""
        self._line = Text(text)
        self._draw()

    def sweep(
        self, spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Redraw the ladder."""
        ended = sum(trial.state.finished for trial in trials)
        left = self._left.of(ended, spec.budget.trials)
        self._ladder = ladder_progress(spec, trials, running)
        self._line = Text(spec.budget.counted(ended))
        if not spec.budget.ends_by_itself:
            self._line.append(f", {left}")
        self._draw()

    def race(self, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """Show the progress of the race."""
        ended = sum(trial.state.finished for trial in trials)
        now = ", ".join(
            f"epoch {point['epochs']:.1f}: {point['metric']:.3f}" for point in running.values()
        )
        self._line = Text(f"race: {ended} trials have ended{f'; {now}' if now else ''}")
        self._draw()

    def run(self, plan: Plan, seed: int, point: ConvergencePoint) -> None:
        """Show the progress of a launched run."""
        self._line = Text(
            f"{KIND_NAMES[plan.kind]} at {plan.global_batch_size} on {plan.workers} workers, "
            f"seed {seed}: epoch {point.epochs:.1f}, {plan.job.target.metric} {point.metric:.3f}"
        )
        self._draw()

    def _draw(self) -> None:
        self._live.update(Group(self._ladder, self._line) if self._ladder else self._line)


class PlainProgress(_TellsPrice):
    """Prints a line for each trial that ends and each run that starts, for a log file."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._reported: set[int] = set()

    def print_line(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._out, flush=True)

    def message(self, text: str) -> None:
        """Print the line."""
        self.print_line(text)

    def sweep(
        self, spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Print every trial that has ended since the last call."""
        ended = [trial for trial in trials if trial.state.finished]
        new = [trial for trial in ended if trial.id not in self._reported]
        if self._reported or len(new) == 1:
            for trial in new:
                total = "" if spec.budget.ends_by_itself else f"/{spec.budget.trials}"
                self.message(
                    f"[{len(ended)}{total}] trial {trial.number}: "
                    f"batch {rung_in_words(trial.global_batch_size, sizes_of_settings(spec, trial.settings))}, "
                    f"seed {trial.seed}, learning rate {trial.settings['learning_rate']:.3g}: {_ending(trial)}"
                )
        elif new:
            self.message(f"continuing after {len(new)} finished trials")
        self._reported.update(trial.id for trial in new)

    def race(self, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """Print every trial of the race that has ended since the last call."""
        for trial in trials:
            if trial.state.finished and trial.id not in self._reported:
                self._reported.add(trial.id)
                warmup = trial.settings.get("warmup_epochs") or 0.0
                self.message(
                    f"race at {trial.global_batch_size}: seed {trial.seed}, learning rate "
                    f"{trial.settings['learning_rate']:.3g}, warmup {warmup:.3g} epochs: {_ending(trial)}"
                )


@contextmanager
def live_progress() -> Iterator[Progress]:
    """Show progress on stderr: redrawn in place on a terminal, as plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainProgress(sys.stderr)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield LiveProgress(live)


def ladder_progress(
    spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
) -> Table:
    """Return the rungs with their results so far."""
    table = new_table(spec.name, *ladder_columns(spec))
    for row in ladder_rows(spec, trials, running):
        table.add_row(*row)
    return table


def _ending(trial: Trial) -> str:
    if trial.state is TrialState.REACHED:
        return f"reached after {trial.epochs_to_target:.2f} epochs"
    return f"{trial.state}: {trial.reason}"
