"""When large-batch techniques pay, on real images.

    python -m benchmarks.techniques goyal digits
    python -m benchmarks.techniques tuned cifar10 --path FOLDER [--output FOLDER]

Results and conclusions: benchmarks/techniques/README.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.techniques import goyal, tuned
from benchmarks.techniques.workloads import Images, images


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("goyal", "tuned"))
    parser.add_argument("images", choices=("digits", "cifar10"))
    parser.add_argument(
        "--path",
        type=Path,
        help="the CIFAR-10 images: a folder with train/CLASS/*.jpg and test/CLASS/*.jpg",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("techniques"),
        help="where the studies are kept; run again to go on (default: %(default)s)",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = images(options.images, options.path)
    started = time.perf_counter()
    if options.table == "goyal":
        print_goyal(chosen)
    else:
        print_tuned(chosen, options.output)
    print(f"\n{time.perf_counter() - started:.0f} s")


def print_goyal(chosen: Images) -> None:
    """Print the final top-1 error of each case."""
    print("| case | batch | learning rate | top-1 error, % (3 seeds) |\n|---|---|---|---|")
    for case, mean, deviation in goyal.rows(chosen):
        print(
            f"| {case.name} | {case.global_batch_size} | {case.settings.learning_rate:.3g} | "
            f"{mean:.2f} +- {deviation:.2f} |",
            flush=True,
        )


def print_tuned(chosen: Images, folder: Path) -> None:
    """Print the epochs to target of each technique at each (last) batch size."""
    print(f"top-1 >= {chosen.target:g} on {chosen.name}\n")
    print("| technique | (last) batch | epochs to target |\n|---|---|---|")
    for technique, batch, candidate in tuned.rows(chosen, folder):
        print(f"| {technique} | {batch} | {tuned.shown(candidate)} |", flush=True)


if __name__ == "__main__":
    main()
