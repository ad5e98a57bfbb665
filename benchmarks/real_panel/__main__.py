"""Compares forecasts at 4 and 8 times the ladder, on real runs, with rules of thumb and the optimum.

    python -m benchmarks.real_panel --data FOLDER       # CIFAR-10: FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg

Runs the sweeps, trains at the target batches, then prints the tables; --stage selects some of these steps. Finished
work is kept in --output and not repeated. Protocol and results: benchmarks/real_panel/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.real_panel import cases, sweeps, tables, trainings
from benchmarks.real_panel.recommendations import FORECASTS, METHODS, STARTS, recommendations

GRID_SEEDS = 2
STAGES = ("sweep", "race", "grid", "truth", "table")


def main() -> None:
    """Run the requested stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=list(STAGES))
    parser.add_argument(
        "--only",
        choices=("built", "held_out", "all"),
        default="all",
        help="the cases that the laws were built with, the held-out ones, or all",
    )
    parser.add_argument(
        "--case", nargs="+", metavar="NAME", help="use only these cases, such as digits-sgd"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="the CIFAR-10 images: a folder with train/CLASS/*.jpg and "
        "test/CLASS/*.jpg; without it, the CIFAR-10 cases are left out",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("real_panel"),
        help="where sweeps and runs are kept; run again to continue (default: %(default)s)",
    )
    parser.add_argument(
        "--sweeps",
        type=int,
        metavar="N",
        help="the maximum number of sweeps per case, if time is short (default: all)",
    )
    parser.add_argument(
        "--lookup",
        action="store_true",
        help="score recommendations by nearby brute-force runs, without training them: for work on "
        "the laws",
    )
    options = parser.parse_args()
    if options.data is not None and not (options.data / "train").is_dir():
        parser.error(f"--data must be a folder that holds train and test, but got {options.data}")
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    known = cases.panel(options.data, options.output)
    names = options.case or [case.name for case in known]
    for name in names:
        if name not in {case.name for case in known}:
            parser.error(
                f"--case must be one of {', '.join(case.name for case in known)}, but got {name}"
            )
    wanted = [
        case
        for case in known
        if case.name in names and options.only in ("all", "held_out" if case.held_out else "built")
    ]
    if "sweep" in options.stage:
        sweeps.run(wanted, options.output, options.sweeps)
    if "race" in options.stage:
        sweeps.race(wanted, options.output)
    held = trainings.Trainings(options.output)
    if "grid" in options.stage:
        held.train_missing(_grid(wanted))
    if "truth" in options.stage:
        held.train_missing(_recommended(wanted, options.output))
    if "table" in options.stage:
        made = {
            case.name: [
                each
                for result in sweeps.read(case, options.output)
                for each in recommendations(case, result)
            ]
            for case in wanted
        }
        print("\n".join(tables.lines(wanted, made, held, known, lookup=options.lookup)))


def _grid(wanted: list[cases.Case]) -> Iterator[trainings.Wanted]:
    """Yield the brute-force runs of all cases, seed by seed, in random order so that partial results are useful."""
    for seed in range(GRID_SEEDS):
        for case in wanted:
            settings = [
                (batch, each) for batch in case.batches for each in trainings.grid(case, batch)
            ]
            for index in np.random.default_rng(seed).permutation(len(settings)):
                batch, each = settings[index]
                yield trainings.wanted(case, batch, each, seed)


def _recommended(wanted: list[cases.Case], folder: Path) -> Iterator[trainings.Wanted]:
    """Yield the recommended runs after each sweep with all seeds, starting with those of the forecasts."""
    found = [
        (case, each)
        for case in wanted
        for result in sweeps.read(case, folder)
        for each in recommendations(case, result)
    ]
    best = tuple(method for method in METHODS if method.endswith(STARTS[0]))
    law = tuple(method for method in METHODS if method.endswith(STARTS[1]))
    for methods in (FORECASTS, best, law):
        for seed in range(max((case.seeds for case, _ in found), default=0)):
            for case, each in found:
                if seed < case.seeds:
                    for method in methods:
                        if method in each.settings:
                            yield trainings.wanted(
                                case, each.global_batch_size, each.settings[method], seed
                            )


if __name__ == "__main__":
    main()
