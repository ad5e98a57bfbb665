"""Forecasts at 8 times the top rung on real images, against brute force at that batch.

    python -m benchmarks.real_images digits
    python -m benchmarks.real_images cifar10 --data FOLDER      # FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg

Sweeps, trains at the target batch, then prints the tables; --stage selects some of these. Finished work is kept in
--output and not repeated. Protocol and results: benchmarks/real_images/README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.real_images import cases, search_cost, sweeps, tables, trainings


def main() -> None:
    """Run the requested stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=("digits", "cifar10"))
    parser.add_argument(
        "--stage",
        choices=("sweep", "truth", "table", "search"),
        nargs="+",
        default=["sweep", "truth", "table", "search"],
    )
    parser.add_argument(
        "--sampler",
        choices=cases.SAMPLERS,
        nargs="+",
        default=list(cases.SAMPLERS),
        help="whose sweeps to run",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="the CIFAR-10 images: a folder with train/CLASS/*.jpg and test/CLASS/*.jpg",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("real_images"),
        help="where sweeps and trainings are kept; run again to continue (default: %(default)s)",
    )
    options = parser.parse_args()
    if options.case == "cifar10" and (options.data is None or not options.data.is_dir()):
        parser.error(
            f"cifar10 needs --data, a folder that holds train and test, but got {options.data}"
        )
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    case = (
        cases.digits() if options.case == "digits" else cases.cifar10(options.data, options.output)
    )
    file = options.output / f"{case.name}.jsonl"
    if "sweep" in options.stage:
        sweeps.run(case, options.sampler, options.output)
    found = sweeps.read(case, options.output)
    if "truth" in options.stage:
        trainings.train_missing(case, [sweep.rate for sweep in found], file)
    done = trainings.read(file)
    if "table" in options.stage:
        print("\n".join(tables.lines(case, found, done)))
    if "search" in options.stage and case.name == "digits":
        print("\n".join(search_cost.lines(case, found, done)))


if __name__ == "__main__":
    main()
