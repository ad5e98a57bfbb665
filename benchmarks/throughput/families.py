"""Families of measured runs from the MLPerf table: defines family, scale and configuration."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.throughput.learn import ThroughputSeries
from hpo.planning.throughput import Measurement

FAMILY = ("benchmark", "round", "submitter", "accelerator_model", "division")
NEEDED = ("train_examples_per_second", "n_accelerators", "global_batch_size")
LEAST_SCALES, LEAST_SPAN = 3, 8
# generations of accelerators by substrings of their names, with the year of the first; the first match counts
GENERATIONS = {
    "P100": 2016,
    "V100": 2017,
    "TPU[ -]?v2": 2017,
    "TPU[ -]?v3": 2018,
    "Ascend": 2019,
    "Gaudi[ -]?2|HL-225": 2022,
    "Gaudi": 2019,
    "A100|A30|A10|A6000|A5000": 2020,
    "TPU[ -]?v5": 2023,
    "TPU": 2020,
    "Graphcore": 2020,
    "H100|H200|GH200|L40": 2022,
    "B100|B200|GB200": 2024,
}
DLPERF_ACCELERATOR = "V100"
UNSEEN = 3  # of 4: see unseen()


@dataclass(frozen=True)
class Case:
    """Rows of the smaller scales, and one configuration of a larger one to predict from them."""

    series: ThroughputSeries
    seen: Sequence[Measurement]
    asked: Measurement

    @property
    def horizon(self) -> float:
        """The number of accelerators over that of the largest scale seen."""
        return self.asked.accelerators / max(row.accelerators for row in self.seen)


def read_series(path: Path) -> list[ThroughputSeries]:
    """Return every family of the table with at least two numbers of accelerators, one row per configuration."""
    found: dict[tuple[str, ...], dict[tuple[int, int, int | None], list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if (
                all(row[name] for name in NEEDED) and int(row["n_accelerators"]) > 0
            ):  # 0: processors only
                family = found.setdefault(tuple(row[name] for name in FAMILY), {})
                family.setdefault(_configuration(row), []).append(
                    float(row["train_examples_per_second"])
                )
    series = [_series(family, configurations) for family, configurations in sorted(found.items())]
    return [one for one in series if len(scales(one)) >= 2]


def generation(series: ThroughputSeries) -> str:
    """Return the generation of a series' accelerators: a key of GENERATIONS, or the accelerator's own name."""
    accelerator = (
        DLPERF_ACCELERATOR if series.origin.startswith("dlperf") else series.name.split(" / ")[3]
    )
    return next(
        (one for one in GENERATIONS if re.search(one, accelerator, re.IGNORECASE)), accelerator
    )


def unseen(series: ThroughputSeries) -> bool:
    """Whether a family is held out, so that no choice was based on it: by a checksum of its submitter or framework.

    It is one in four: those with a first byte of the SHA-256 that is UNSEEN modulo 4. The rule was fixed before the
    first score.
    """
    parts = series.name.split(" / ")
    who = parts[1] if series.origin.startswith("dlperf") else parts[2]
    return hashlib.sha256(who.encode()).digest()[0] % 4 == UNSEEN


def scales(series: ThroughputSeries) -> list[int]:
    """Return the measured numbers of accelerators, ascending."""
    return sorted({row.accelerators for row in series.rows})


def scored(series: Sequence[ThroughputSeries]) -> list[ThroughputSeries]:
    """Return the families with enough scales over a wide enough range to be scored."""
    return [
        one
        for one in series
        if len(scales(one)) >= LEAST_SCALES and scales(one)[-1] >= LEAST_SPAN * scales(one)[0]
    ]


def cases(series: ThroughputSeries) -> Iterator[Case]:
    """Yield every prefix of at least two scales, with every configuration of every larger scale."""
    sizes = scales(series)
    for count in range(2, len(sizes)):
        seen = [row for row in series.rows if row.accelerators <= sizes[count - 1]]
        for row in series.rows:
            if row.accelerators > sizes[count - 1]:
                yield Case(series, seen, row)


def _configuration(row: Mapping[str, str]) -> tuple[int, int, int | None]:
    return (
        int(row["n_accelerators"]),
        int(row["global_batch_size"]),
        int(row["n_nodes"]) if row["n_nodes"] else None,
    )


def _series(
    family: tuple[str, ...], configurations: Mapping[tuple[int, int, int | None], Sequence[float]]
) -> ThroughputSeries:
    # for some systems the table's nodes are inconsistent with its accelerators: then they are unknown
    rows = [
        Measurement(
            accelerators,
            batch,
            median(values),
            nodes if nodes and nodes <= accelerators else None,
            runs=len(values),
        )
        for (accelerators, batch, nodes), values in sorted(
            configurations.items(), key=lambda item: item[0][:2]
        )
    ]
    return ThroughputSeries(" / ".join(part for part in family if part), family[1], rows)
