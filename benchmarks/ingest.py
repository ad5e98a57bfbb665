"""Convergence points per second into SQLite and PostgreSQL against Optuna's RDBStorage, and reading a large study.

Both write to databases of the same kind on the same disk, in turns, round by round: Optuna reports values of running
trials one by one, its only way (``Trial.report``); the Store records trainings of 200 points as they come from a sweep
(``record``: 50 trainings per call) and columns (``record_columns``). A point of the Store has nine measured values, a
report of Optuna has one. PostgreSQL is a private server with its default settings, so every commit waits for the disk.
Then a study of ``--trials`` trainings of ``--points`` points is written, and read as pages of a dashboard do.

    python -m benchmarks.ingest [--rounds N] [--seconds S] [--trials N] [--points N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import optuna

from benchmarks.private_postgres import private_postgres
from search_spaces.settings import TrainingSettings
from storage.records import (
    Convergence,
    ConvergencePoint,
    NewStudy,
    NewTrial,
    Study,
    TrialResult,
    TrialState,
)
from storage.store import Store

POINTS, TRIALS_A_CALL = 200, 50
READS = 40
_SEEDS = itertools.count()  # a study trains the same settings and seed only once
SETTINGS = TrainingSettings().to_dict()


def main() -> None:
    """Print the rates of both, their ratio, and the times of reads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way in each round")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument(
        "--folder", type=Path, help="on the disk to be measured (default: that of temporary files)"
    )
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with databases(options.folder) as urls:
        for name, new_url in urls.items():
            print(
                f"\n{name}: points per second, median (least to greatest) of {options.rounds} rounds"
            )
            compare(new_url, options.rounds, options.seconds)
            with Store.open(new_url()) as store:
                print(
                    f"\n{name}: a study of {options.trials:,} trials with {options.points} points each"
                )
                study = write_study(store, options.trials, options.points)
                read_study(store, study)


@contextmanager
def databases(folder: Path | None) -> Iterator[dict[str, Callable[[], str]]]:
    """Provide a function for each kind of database that returns the URL of a new one."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as files,
        private_postgres(folder=folder) as server,
    ):
        numbers = iter(range(1000))
        yield {
            "SQLite": lambda: f"sqlite:///{files}/{next(numbers)}.db",
            "PostgreSQL": lambda: server.url(server.new_database()),
        }


def compare(new_url: Callable[[], str], rounds: int, seconds: float) -> None:
    """Print the rates of every way, each on a separate database, and their ratio to Optuna's."""
    with Store.open(new_url()) as store:
        ways = {
            "Optuna, Trial.report": optuna_way(new_url()),
            "Store.record": record_way(store, "points"),
            "Store.record_columns": columns_way(store, "columns"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, write in ways.items():
                rates[name].append(rate(write, seconds))
    beside = statistics.median(rates["Optuna, Trial.report"])
    for name, taken in rates.items():
        median = statistics.median(taken)
        print(
            f"  {name:22} {median:>9,.0f} ({min(taken):,.0f} to {max(taken):,.0f}), "
            f"{median / beside:,.0f} times Optuna's"
        )


def rate(write: Callable[[], int], seconds: float) -> float:
    """Return the points per second over some seconds; ``write`` returns the number it wrote."""
    written, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds:
        written += write()
    return written / taken


def optuna_way(url: str) -> Callable[[], int]:
    """Report one value of a running trial per call; start a new trial after every 200."""
    storage = optuna.storages.RDBStorage(url.replace("postgresql://", "postgresql+psycopg://"))
    study = optuna.create_study(storage=storage)
    trial, step = study.ask(), 0

    def write() -> int:
        nonlocal trial, step
        if step == POINTS:
            trial, step = study.ask(), 0
        trial.report(1 / (1 + step), step)
        step += 1
        return 1

    return write


def record_way(store: Store, name: str) -> Callable[[], int]:
    """Write the points of 50 new trials per call."""
    study = new_study(store, name)
    points = [
        ConvergencePoint(
            step=step,
            samples=32 * step,
            epochs=step / 7,
            seconds=0.1 * step,
            train_loss=1 / (1 + step),
            loss=2 / (1 + step),
            metric=step / (step + 1),
            learning_rate=0.1,
            global_batch_size=32,
            gradient_noise_scale=100.0 + step,
        )
        for step in range(POINTS)
    ]

    def write() -> int:
        store.record(dict.fromkeys(new_trials(store, study, TRIALS_A_CALL), points))
        return TRIALS_A_CALL * POINTS

    return write


def columns_way(store: Store, name: str) -> Callable[[], int]:
    """Write the points of 50 new trials per call, in columns."""
    study = new_study(store, name)

    def write() -> int:
        columns = curves(new_trials(store, study, TRIALS_A_CALL), POINTS)
        store.record_columns(columns)
        return len(columns)

    return write


def write_study(store: Store, count: int, points: int) -> Study:
    """Write a study of finished trials with their points, besides a hundred small studies."""
    for number in range(100):
        new_trials(store, new_study(store, f"small {number}"), 3)
    study, begin = new_study(store, "large"), time.perf_counter()
    ids = new_trials(store, study, count)
    added, step = time.perf_counter(), max(1, 100_000 // points)
    for first in range(0, count, step):
        store.record_columns(curves(ids[first : first + step], points))
    recorded = time.perf_counter()
    for number, trial_id in enumerate(ids):
        store.finish_trial(
            trial_id,
            TrialResult(
                state=TrialState.REACHED,
                epochs_to_target=10 + (7 * number) % 100 / 10,
                epochs=25.0,
                steps=points,
                seconds=20.0,
                best_metric=0.97,
                final_metric=0.96,
            ),
        )
    ended = time.perf_counter()
    print(
        f"  written in {ended - begin:.1f} s: trials {added - begin:.1f} s, points {recorded - added:.1f} s "
        f"({count * points / (recorded - added):,.0f} a second), results {ended - recorded:.1f} s "
        f"({1000 * (ended - recorded) / count:.2f} ms each)"
    )
    return study


def read_study(store: Store, study: Study) -> None:
    """Print median and 95th percentile of the times of some reads, each of different rows."""
    ids = [trial.id for trial in store.trials(study.id)]
    generator = np.random.default_rng(0)
    reads: dict[str, Callable[[], object]] = {
        "page of 100 studies": store.page_studies,
        "page of 100 trials": lambda: store.page_trials(
            study.id, after=int(generator.integers(len(ids)))
        ),
        "page of 100 trials, by epochs to target": lambda: store.page_trials(
            study.id, order="epochs_to_target", after=int(generator.integers(len(ids)))
        ),
        "one curve": lambda: store.convergence([int(generator.choice(ids))]),
        "50 curves": lambda: store.convergence(generator.choice(ids, 50, replace=False).tolist()),
        "usage": lambda: store.usage(study.id),
    }
    for name, read in reads.items():
        taken = []
        for _ in range(READS):
            begin = time.perf_counter()
            read()
            taken.append(1000 * (time.perf_counter() - begin))
        print(
            f"  {name:40} {statistics.median(taken):6.1f} ms, p95 {np.percentile(taken, 95):6.1f} ms"
        )


def new_study(store: Store, name: str) -> Study:
    """Create a study without trials."""
    return store.create_study(
        NewStudy(
            name=name,
            workload="resnet",
            metric="top1",
            threshold=0.96,
            higher_is_better=True,
            spec=name,
        )
    )


def new_trials(store: Store, study: Study, count: int) -> list[int]:
    """Create trials and return their ids."""
    return [
        trial.id
        for trial in store.add_trials(
            study.id,
            [
                NewTrial(global_batch_size=32 << seed % 5, seed=next(_SEEDS), settings=SETTINGS)
                for seed in range(count)
            ],
        )
    ]


def curves(ids: list[int], points: int) -> Convergence:
    """Return trainings in columns."""
    step = np.tile(np.arange(points), len(ids))
    loss = 1 / (1 + step)
    return Convergence(
        trial_id=np.repeat(ids, points),
        step=step,
        samples=32 * step,
        epochs=step / 7,
        seconds=0.1 * step,
        train_loss=loss,
        loss=2 * loss,
        metric=1 - loss,
        learning_rate=np.full(len(step), 0.1),
        global_batch_size=np.full(len(step), 32),
        gradient_noise_scale=100.0 + step,
    )


if __name__ == "__main__":
    main()
