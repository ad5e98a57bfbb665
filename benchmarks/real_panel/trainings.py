"""Real training runs at the target batches, stored as JSON lines with their full curves."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real_panel.cases import Case
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.report import ConvergencePoint
from trainers.workloads import AnyWorkload, load_workload

FIRST_SEED = 100  # the smallest seed used here; the sweeps train with smaller seeds
LOST_EPOCHS = 300.0
"""Epochs assigned to a run that did not reach the target within its budget."""

Settings = Mapping[str, float]
"""The tuned settings by name, rounded to three digits."""


@dataclass(frozen=True)
class Wanted:
    """A requested training run."""

    case: Case
    global_batch_size: int
    settings: tuple[tuple[str, float], ...]
    seed: int


@dataclass(frozen=True)
class Training:
    """One run at a target batch; ``state`` is the state of its outcome, or "hopeless" if it was given up.

    ``curve`` is the metric after each of ``curve_epochs``, and ``losses`` is the mean training loss between them.
    """

    case: str
    global_batch_size: int
    settings: Settings
    seed: int
    state: str
    epochs: float
    samples: float
    curve_epochs: tuple[float, ...]
    curve: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def lost(self) -> bool:
        """Whether the run did not reach the target."""
        return self.state != "reached"

    @property
    def counted_epochs(self) -> float:
        """Epochs to the target; ``LOST_EPOCHS`` if it was not reached."""
        return LOST_EPOCHS if self.lost else self.epochs


class Trainings:
    """The runs stored in a folder, one file for each case."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "trainings"
        self._held: dict[tuple[object, ...], Training] = {}
        for file in sorted(self._folder.glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                found = Training(**json.loads(line))
                self._held[
                    _key(found.case, found.global_batch_size, found.settings, found.seed)
                ] = found

    def of(self, case: Case, global_batch_size: int) -> list[Training]:
        """Return all runs of a case at a batch size."""
        return [
            each
            for each in self._held.values()
            if each.case == case.name and each.global_batch_size == global_batch_size
        ]

    def find(
        self, case: Case, global_batch_size: int, settings: Settings, seeds: int
    ) -> list[Training]:
        """Return the existing runs of the first ``seeds`` seeds with given settings."""
        keys = (
            _key(case.name, global_batch_size, rounded(settings), FIRST_SEED + seed)
            for seed in range(seeds)
        )
        return [self._held[key] for key in keys if key in self._held]

    def train_missing(self, wanted: Iterable[Wanted]) -> None:
        """Train every missing run, in the given order."""
        trainers: dict[str, Callable[[Wanted], Training]] = {}
        for each in wanted:
            key = _key(each.case.name, each.global_batch_size, dict(each.settings), each.seed)
            if key in self._held:
                continue
            if each.case.name not in trainers:
                trainers[each.case.name] = _trainer(each.case)
            done = trainers[each.case.name](each)
            self._held[key] = done
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{each.case.name}.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(dataclasses.asdict(done)) + "\n")


def rounded(settings: Settings) -> dict[str, float]:
    """Return settings rounded to three digits, as they are trained."""
    return {name: float(f"{value:.3g}") for name, value in settings.items()}


def wanted(case: Case, global_batch_size: int, settings: Settings, seed: int) -> Wanted:
    """Return the requested run with the ``seed``-th seed, counted from 0."""
    return Wanted(
        case, global_batch_size, tuple(sorted(rounded(settings).items())), FIRST_SEED + seed
    )


def grid(case: Case, global_batch_size: int) -> list[dict[str, float]]:
    """Return the brute-force grid: learning rates, and warmups from 2 updates to half of the ladder's budget."""
    if case.grid_from is None:
        return []
    updates_per_epoch = train_samples(case) / global_batch_size
    most = case.epochs / 2 * updates_per_epoch
    rates = case.grid_from * case.grid_step ** np.arange(case.grid_rates)
    warmups = np.geomspace(2, most, case.grid_warmups) / updates_per_epoch
    return [
        rounded({"learning_rate": float(rate), "warmup_epochs": float(warmup)})
        for rate in rates
        for warmup in warmups
    ]


def train_samples(case: Case) -> int:
    """Return the number of samples in an epoch."""
    return workload(case).train_samples


_loaded: dict[str, AnyWorkload] = {}


def workload(case: Case) -> AnyWorkload:
    """Return the workload of a case, loaded once."""
    key = f"{case.class_name} {sorted(case.data.items())}"
    if key not in _loaded:
        spec = next(case.specs())
        _loaded[key] = load_workload(spec.workload, spec.data)
    return _loaded[key]


def _trainer(case: Case) -> Callable[[Wanted], Training]:
    spec, loaded = next(case.specs()), workload(case)

    def train(asked: Wanted) -> Training:
        settings = TrainingSettings.from_dict({**spec.search.fixed, **dict(asked.settings)})
        run = begin_training(
            training_job(
                spec, settings, asked.global_batch_size, asked.seed, epochs=case.epochs_beyond
            ),
            workload=loaded,
        )
        points = []
        while not run.finished and not (points and _hopeless(case, points)):
            points.append(run.advance())
        state = run.outcome.state if run.finished else "hopeless"
        return Training(
            case.name,
            asked.global_batch_size,
            dict(asked.settings),
            asked.seed,
            state,
            points[-1].epochs,
            points[-1].samples,
            tuple(round(point.epochs, 4) for point in points),
            tuple(_short(point.metric) for point in points),
            tuple(_short(point.train_loss) for point in points),
        )

    return train


def _hopeless(case: Case, points: Sequence[ConvergencePoint]) -> bool:
    """Return whether a run used a quarter of its budget without ever getting halfway to the target."""
    return (
        points[-1].epochs >= case.epochs_beyond / 4
        and max(point.metric for point in points) < case.target / 2
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else 1e30


def _key(case: str, global_batch_size: int, settings: Settings, seed: int) -> tuple[object, ...]:
    return (case, global_batch_size, tuple(sorted(settings.items())), seed)
