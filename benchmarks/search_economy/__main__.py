"""Measures regret against samples spent, on real runs: python -m benchmarks.search_economy --output FOLDER.

    python -m benchmarks.search_economy --stage train --case digits-sgd --output FOLDER  # the runs to look up
    python -m benchmarks.search_economy --stage search table --output FOLDER             # searches on all of them

Training runs and searches are kept in --output as JSON lines and not repeated. Protocol and results: README.md beside
this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_panel import cases
from benchmarks.real_panel.trainings import train_samples
from benchmarks.search_economy import grids, report
from benchmarks.search_economy.direct import DIRECT
from benchmarks.search_economy.own import OwnSearch
from benchmarks.search_economy.panel import PanelLandscape
from benchmarks.search_economy.protocol import Landscape, search
from benchmarks.search_economy.published import DEBERTA_BATCHES, alexnet, deberta

SPENDS = (1.0, 2.0, 4.0, 8.0, 16.0)
STAGES = ("train", "search", "table")
METHODS: dict[str, Any] = {"search": OwnSearch, **DIRECT}
"""The compared searches: functions of a landscape and a seed."""

PUBLISHED: dict[str, tuple[Any, str, int]] = {
    **{
        f"alexnet-{batch}": (alexnet, "alexnet_tuning.jsonl.gz", batch)
        for batch in (256, 512, 1024)
    },
    **{
        f"deberta-{batch}": (deberta, "deberta-base_tuning.jsonl.gz", batch)
        for batch in DEBERTA_BATCHES
    },
}
"""Constructor, file and batch size of each landscape of published runs."""


def main() -> None:
    """Run the requested stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=["search", "table"])
    parser.add_argument("--case", nargs="+", metavar="NAME", help="use only these cases")
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--data",
        type=Path,
        help="the CIFAR-10 images: a folder with train/CLASS/*.jpg and test/CLASS/*.jpg",
    )
    parser.add_argument(
        "--published",
        type=Path,
        help="opda's folder: alexnet_tuning.jsonl.gz and deberta-base_tuning.jsonl.gz; without it, both are left out",
    )
    parser.add_argument("--output", type=Path, default=Path("search_economy"))
    parser.add_argument("--picture", type=Path, help="where to write the picture (SVG)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    known = {each.name: each for each in cases.panel(options.data, options.output)}
    for name in options.case or []:
        if name not in {*known, *PUBLISHED}:
            parser.error(f"--case must be one of {', '.join([*known, *PUBLISHED])}, but got {name}")
    if "train" in options.stage:
        for name, case in known.items():
            if options.case is None or name in options.case:
                grids.train_missing(case, options.output / "trainings")
    results = options.output / "searches.jsonl"
    if "search" in options.stage:
        _search(
            list(landscapes(options.output, known, options.published, options.case)),
            options.method,
            options.seeds,
            results,
        )
    if "table" in options.stage:
        rows = [row for row in _read(results) if row["method"] in options.method]
        rows = [row for row in rows if options.case is None or row["case"] in options.case]
        print("\n".join(report.lines(rows, SPENDS)))
        if options.picture is not None:
            options.picture.write_text(report.picture(rows, SPENDS), encoding="utf-8")


def landscapes(
    folder: Path,
    known: dict[str, cases.Case],
    published: Path | None = None,
    wanted: list[str] | None = None,
) -> Iterator[Landscape]:
    """Yield the landscapes of ``known`` panel cases with complete grids in ``folder``, and of the published runs."""
    for name, case in known.items():
        held = grids.read(name, folder / "trainings")
        if (wanted is None or name in wanted) and grids.complete(case, held):
            yield PanelLandscape(case, held, train_samples(case))
    if published is not None:
        for name, (make, file, batch) in PUBLISHED.items():
            if wanted is None or name in wanted:
                yield make(published / file, batch)


def _search(found: list[Landscape], methods: list[str], seeds: int, results: Path) -> None:
    """Run every search that is not in the file: the first seed of every search, then the second, and so on."""
    held = {(row["case"], row["method"], row["seed"]) for row in _read(results)}
    for seed in range(seeds):
        for landscape in found:
            for method in methods:
                if (landscape.name, method, seed) in held:
                    continue
                done = search(landscape, METHODS[method](landscape, seed), SPENDS)
                row = {
                    "case": landscape.name,
                    "method": method,
                    "seed": seed,
                    "optimum": landscape.optimum,
                    "regret": {str(mark.spend): mark.regret for mark in done.marks},
                    "lost": {str(mark.spend): mark.lost for mark in done.marks},
                    "settings": {str(mark.spend): dict(mark.settings) for mark in done.marks},
                    "spent": done.spent,
                    "ended": done.ended,
                    "end_regret": done.end.regret,
                    "trainings": done.trainings,
                    "seconds": round(done.seconds, 2),
                }
                with results.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")


def _read(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
