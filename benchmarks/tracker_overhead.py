"""The overhead of a tracker for the trials that it follows: ``python -m benchmarks.tracker_overhead``.

One study of a model in PyTorch (digits, a small residual network, trained in this process) is swept with a tracker that
fails at once, one that hangs for a minute in its first call, one whose network never responds (a server that accepts
and never answers), one that writes each point, and without any, in turn. The order is shifted by one and reversed from
round to round, so that the machine's other load affects all equally. A sweep is the same each time: sampler, seeds and
trials.

The seconds of the trials by their own clock and the CPU time of the training thread are compared with those of the
sweep without a tracker of the same round: the median over the rounds with its standard error, as disturbances of a
virtual machine come in bursts. Also shown are the CPU time of the tracker's own process, the only place where it can
slow down a training, at the lowest priority, and the end of each trial.

``--waiting`` trains on an accelerator instead, as far as the processor sees it: each step waits 20 ms for its samples
and computes next to nothing. That is the training that people follow with a tracker, and its clock is exact to a
quarter of a per cent.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import socket
import statistics
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hpo
from hpo.runs.exports import beside
from hpo.runs.progress import Progress
from hpo.study.spec import parse_study
from storage.records import Trial

STUDY = """\
name: paced
ladder: [64]
search:
  optimizer: sgd
  learning_rate: {{log_uniform: [0.02, 0.5], role: scaled}}
budget: {{trials: {trials}, epochs_per_trial: {epochs}}}
sampler: qmc
trackers: {trackers}
"""
DIGITS = """\
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.999}
resources: {fused_trials: 2}
"""
WAITING = """\
workload: waiting_steps:Waiting
target: {metric: loss, at_most: 0.001}
"""
WORKLOAD = """
import time
import torch
from torch import nn
from trainers.workloads import Workload

class Waiting(Workload):
    metrics = {"loss": False}
    train_samples, evaluation_samples = 1600, 64
    simulated = True

    def __init__(self, data):
        pass

    def build_model(self, settings):
        return nn.Linear(1, 1)

    def training_batch(self, indices, epochs, seed):
        time.sleep(0.02)
        return self.evaluation_batch(indices)

    def evaluation_batch(self, indices):
        return torch.ones(len(indices), 1), torch.arange(len(indices))[:, None] % 2 * 1.0

    def loss(self, model, batch, settings):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def score(self, model, batch):
        return {"loss": ((model(batch[0]) - batch[1]) ** 2).flatten()}
"""
PACKAGE = """
import socket, time
from hpo.study.trackers import TrackerDescription

class Odd:
    def __init__(self, study, spec, folder, way, port="0"):
        self.way, self.port, self.lines = way, int(port), (folder / "lines").open("a")

    def begin(self, trial):
        if self.way == "fails":
            raise OSError("the network is down")
        if self.way == "hangs":
            time.sleep(60)
        if self.way == "silent":
            with socket.create_connection(("127.0.0.1", self.port)) as line:
                line.sendall(b"begin")
                line.recv(1)
        return 0

    def add(self, trial, points):
        for point in points:
            print(trial.number, point.step, point.metric, file=self.lines, flush=True)

    def end(self, trial):
        print("end", trial.number, file=self.lines, flush=True)

    def close(self):
        self.lines.close()

ODD = TrackerDescription(rule="odd_tracker:Odd", about="odd", source="here",
                         settings={"way": "how", "port": "of a server"})
"""
WAYS = ("none", "writes", "fails", "hangs", "silent")


class _Heard(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.seen: list[float] = []

    def sweep(self, *what: object) -> None:  # noqa: ARG002
        """Record the CPU time of the training thread after each evaluation."""
        self.seen.append(time.thread_time())

    def message(self, text: str) -> None:
        if text.startswith("tracker "):
            self.warnings.append(text)


@contextmanager
def silent_server() -> Iterator[int]:
    """Start a server that accepts connections and never answers; provide its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []
        server.settimeout(0.2)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    kept.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            over.set()
            thread.join()
            for each in kept:
                each.close()


def install(folder: Path) -> None:
    """Install the trackers as a third-party package, for this process and those that it starts."""
    (folder / "odd_tracker.py").write_text(textwrap.dedent(PACKAGE))
    (folder / "waiting_steps.py").write_text(WORKLOAD)
    info = folder / "odd_tracker-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-tracker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[largebatch.trackers]\nodd = odd_tracker:ODD\n")
    (info / "top_level.txt").write_text("odd_tracker\n")
    sys.path.insert(0, str(folder))
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), str(Path.cwd()), given]))


def sweep(
    folder: Path, way: str, number: int, port: int, trials: int, epochs: int, task: str
) -> tuple[Sequence[Trial], list[str], float]:
    """Run one sweep beside a tracker; return its trials, the warnings, and the CPU seconds of its thread
    from the first evaluation to the last."""
    trackers = "[]" if way == "none" else f'[{{odd: {{way: {way}, port: "{port}"}}}}]'
    heard = _Heard()
    text = task + STUDY.format(trackers=trackers, trials=trials, epochs=epochs)
    result = hpo.run_study(
        parse_study(text),
        storage=f"sqlite:///{folder}/{way}-{number}.db",
        folder=folder / f"{way}-{number}",
        progress=heard,
        price_seconds=0,
    )
    return result.trials, heard.warnings, heard.seen[-1] - heard.seen[0]


@contextmanager
def taken() -> Iterator[list[float]]:
    """Collect the CPU time that each tracker has used by the end of its run (Linux)."""
    seconds: list[float] = []
    ends = beside._Beside.tell_end

    def tell_end(one: beside._Beside) -> None:
        if one._process is not None:
            with contextlib.suppress(OSError):
                counts = (
                    Path(f"/proc/{one._process.pid}/stat").read_text().rpartition(")")[2].split()
                )
                seconds.append((int(counts[11]) + int(counts[12])) / os.sysconf("SC_CLK_TCK"))
        ends(one)

    beside._Beside.tell_end = tell_end  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        beside._Beside.tell_end = ends  # type: ignore[method-assign]


def spread(quotients: Sequence[float]) -> tuple[float, float]:
    """Return the median of quotients minus one, and its standard error by their quartiles, both as a share."""
    logs = sorted(math.log(each) for each in quotients)
    if len(logs) < 4:
        return math.expm1(statistics.median(logs)), math.nan
    low, _, high = statistics.quantiles(logs, n=4)
    # 1.349 standard deviations between the quartiles of a normal distribution, whose median is 1.253 times as uncertain
    return math.expm1(statistics.median(logs)), 1.253 * (high - low) / 1.349 / math.sqrt(len(logs))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--grace", type=float, default=5.0, help="seconds for a tracker at the end")
    parser.add_argument("--waiting", action="store_true", help="steps that wait, as for a GPU")
    asked = parser.parse_args()
    task = WAITING if asked.waiting else DIGITS
    beside.GRACE_SECONDS = asked.grace
    quotients: dict[str, list[float]] = {way: [] for way in WAYS}
    rounds: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    own: dict[str, list[float]] = {way: [] for way in WAYS}
    lost, warned = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as name, silent_server() as port:
        folder = Path(name)
        install(folder)
        sweep(folder, "none", -1, port, asked.trials, asked.epochs, task)  # loads the libraries
        for number in range(asked.rounds):
            turn = number // 2 % len(WAYS)  # each way is at each place equally often
            order = (WAYS[turn:] + WAYS[:turn])[:: 1 if number % 2 == 0 else -1]
            found, spent = {}, dict[str, float]()
            for way in order:
                with taken() as seconds:
                    trials, warnings, spent[way] = sweep(
                        folder, way, number, port, asked.trials, asked.epochs, task
                    )
                found[way] = {trial.number: trial for trial in trials}
                own[way].append(sum(seconds))
                warned[way] += len(warnings)
            plain = found["none"]
            for way in WAYS:
                for trial in plain.values():
                    other = found[way].get(trial.number)
                    if other is None or (other.state, other.epochs, other.steps) != (
                        trial.state,
                        trial.epochs,
                        trial.steps,
                    ):
                        lost[way] += 1
                times = [
                    sum(each.seconds or 0.0 for each in one.values()) for one in (found[way], plain)
                ]
                quotients[way].append(times[0] / times[1])
                processor[way].append(spent[way] / spent["none"])
                rounds[way].append(times[0])
    print(
        "| tracker | sweeps | lost or otherwise | warnings | seconds of trials | clock | processor | its own |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for way in WAYS:
        told = ["", ""]
        if way != "none":
            told = [
                f"{mean:+.2%} ± {error:.2%}"
                for mean, error in (spread(quotients[way]), spread(processor[way]))
            ]
        seconds = statistics.median(rounds[way])
        print(
            f"| {way} | {asked.rounds} | {lost[way]} | {warned[way]} | {seconds:.2f} | {told[0]} | {told[1]} "
            f"| {statistics.median(own[way]):.2f} |"
        )


if __name__ == "__main__":
    main()
