"""Write a data set of generated climate fields in the DeepCAM format.

    python -m trainers.workloads.segmentation FOLDER --train 256 --validation 64 --height 96 --width 144 --seed 0

The command writes train/*.h5, validation/*.h5 and stats.h5 to FOLDER, and prints each class's share of the training
pixels, the size in MB and the time in seconds. Exit status: 0 if written, 2 if an option or the folder is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from trainers.errors import DataError
from trainers.workloads.segmentation.channels import CLASSES
from trainers.workloads.segmentation.generate import GeneratedOptions, write_data_set


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    start = time.perf_counter()
    try:
        wanted = GeneratedOptions(
            samples=options.train,
            evaluation_samples=options.validation,
            height=options.height,
            width=options.width,
            seed=options.seed,
        )
        if options.folder.exists():
            raise DataError(f"{options.folder} exists already; name a new folder")
        options.folder.parent.mkdir(parents=True, exist_ok=True)
        counts = write_data_set(options.folder, wanted, options.workers)
    except (DataError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for name, count in zip(CLASSES, counts, strict=True):
        sys.stdout.write(f"{name:18} {count / counts.sum():.5f} of the training pixels\n")
    size = sum(file.stat().st_size for file in options.folder.rglob("*.h5"))
    sys.stdout.write(
        f"{size / 1e6:.1f} MB in {options.folder}, {time.perf_counter() - start:.2f} seconds\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainers.workloads.segmentation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = GeneratedOptions()
    parser.add_argument("folder", type=Path, help="folder to write; must not exist yet")
    parser.add_argument(
        "--train",
        type=int,
        default=defaults.samples,
        help="number of training samples (default: %(default)s)",
    )
    parser.add_argument(
        "--validation",
        type=int,
        default=defaults.evaluation_samples,
        help="number of evaluation samples (default: %(default)s)",
    )
    parser.add_argument(
        "--height",
        type=int,
        default=defaults.height,
        help="number of latitudes (default: %(default)s)",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=defaults.width,
        help="number of longitudes (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, help="default: %(default)s")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes that generate samples (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
