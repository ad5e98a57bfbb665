"""MB/s of staging against plain copies of the same files, and of the DeepCAM reader against plain reads.

Writes samples of 768x1152x16 in the DeepCAM format below ``--folder`` (57 MB each), then measures in turn, round by
round: a file copy in Python and by ``cp``, staging by one node with one and with four threads, staging by two nodes
on one machine (processes under torch.distributed, both on this disk), reading the bytes, and reading checked samples.
The CPU time of all processes, user and system, depends less on the machine's other load than the rates do.
*Cold* first asks the kernel to drop the source files from its page cache (posix_fadvise), *warm* has just read them.

    python benchmarks/reading.py [--samples N] [--rounds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trainers.staging import stage
from trainers.workloads.segmentation.hdf5 import read_hdf5_sample, write_hdf5_sample

SHAPE = (768, 1152, 16)
MEGABYTE = 1_000_000
Measure = Callable[[Path, Path], float]


def main() -> None:
    """Print MB/s of each way, cold and warm, and CPU seconds per GB."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="on the disk to be measured (default: that of temporary files)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        shared = Path(folder) / "shared"
        megabytes = write_samples(shared, options.samples) / MEGABYTE
        print(
            f"{options.samples} files, {megabytes:.0f} MB; MB/s: median (least to greatest) of "
            f"{options.rounds} rounds"
        )
        print(f"{'':34} {'cold':>24} {'warm':>24} {'processor s/GB, warm':>22}")
        taken = measure_all(Path(folder), shared, options.rounds)
        for name in WAYS:
            rates = [
                summary(megabytes, [each.seconds for each in taken[name, cold]])
                for cold in (True, False)
            ]
            processor = (
                statistics.median(each.processor_seconds for each in taken[name, False])
                / megabytes
                * 1000
            )
            print(f"{name:34} {rates[0]:>24} {rates[1]:>24} {processor:>22.2f}")


def write_samples(folder: Path, count: int) -> int:
    """Write samples of random fields (the format stores them uncompressed); return their bytes."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        fields = generator.standard_normal(SHAPE, dtype=np.float32)
        write_hdf5_sample(
            folder / f"data-{number:03}.h5", fields, generator.integers(0, 3, SHAPE[:2])
        )
    return sum(path.stat().st_size for path in folder.iterdir())


@dataclass(frozen=True)
class Taken:
    """One measurement of one way."""

    seconds: float
    processor_seconds: float


def measure_all(folder: Path, shared: Path, rounds: int) -> dict[tuple[str, bool], list[Taken]]:
    """Measure each way, cold and warm, in turn, each into a fresh folder whose removal is not timed."""
    everything: dict[tuple[str, bool], list[Taken]] = {
        (name, cold): [] for name in WAYS for cold in (True, False)
    }
    for _ in range(rounds):
        for (name, cold), taken in everything.items():
            target = folder / "target"
            target.mkdir()
            os.sync()
            (drop_from_cache if cold else read_plainly)(shared, target)
            before = sum(os.times()[:4])
            seconds = WAYS[name](shared, target)
            taken.append(Taken(seconds, sum(os.times()[:4]) - before))
            shutil.rmtree(target)
    return everything


def summary(megabytes: float, seconds: list[float]) -> str:
    """Return median, minimum and maximum rate."""
    rates = sorted(megabytes / each for each in seconds)
    return f"{statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f})"


def drop_from_cache(shared: Path, _: Path) -> float:
    """Ask the kernel to drop the pages of the source files, which are clean by now."""
    for path in shared.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return 0.0


def copy_in_python(shared: Path, target: Path) -> float:
    """shutil.copyfile: sendfile within the kernel, one file after the other."""
    started = time.perf_counter()
    for path in shared.iterdir():
        shutil.copyfile(path, target / path.name)
    return time.perf_counter() - started


def copy_by_cp(shared: Path, target: Path) -> float:
    """Use one cp process for all files, with ``--reflink=never`` so that the bytes are really copied."""
    started = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", *map(str, shared.iterdir()), str(target)], check=True)
    return time.perf_counter() - started


def stage_alone(shared: Path, target: Path, *, threads: int) -> float:
    """Stage by one node: read, checksum, write, read back and checksum again."""
    return stage(shared, target, threads=threads).seconds


def stage_on_two(shared: Path, target: Path) -> float:
    """Stage by two processes, each file read by one of them and written by both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    nodes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trainers.staging",
                str(shared),
                str(target / str(rank)),
                "--backend",
                "torch",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(2)
    ]
    answers = [node.communicate()[0] for node in nodes]
    return float(json.loads(answers[0])["seconds"])


def read_plainly(shared: Path, _: Path) -> float:
    """Read every byte of every file into one buffer of 4 MB."""
    buffer = bytearray(4 * 2**20)
    started = time.perf_counter()
    for path in shared.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


def read_samples(shared: Path, _: Path) -> float:
    """Read every sample with the DeepCAM reader, which checks shapes, values and labels."""
    started = time.perf_counter()
    for path in shared.iterdir():
        read_hdf5_sample(path, SHAPE[:2])
    return time.perf_counter() - started


WAYS: dict[str, Measure] = {
    "shutil.copyfile": copy_in_python,
    "cp": copy_by_cp,
    "staging, 1 node, 1 thread": partial(stage_alone, threads=1),
    "staging, 1 node, 4 threads": partial(stage_alone, threads=4),
    "staging, 2 nodes here (per node)": stage_on_two,
    "plain read": read_plainly,
    "DeepCAM reader": read_samples,
}


if __name__ == "__main__":
    main()
