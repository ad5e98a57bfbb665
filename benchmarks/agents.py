"""Agents on one study of a server, with many agents killed and the server restarted: does every trial end exactly once?

``--agents`` processes of `hpo agent` train ``--trials`` trainings that sleep; a third of the agents is killed
(SIGKILL) at moments drawn from ``--seed``, and the server is killed and started again ``--restarts`` times. At the end
every trial must have exactly one result, none may have begun again after it, and every result acknowledged to an agent
must be the stored one. Exits with 1 if one of these rules is broken, or an agent's overhead for a trial is above
``--limit``.

The overhead is the agent's own time for a trial that is neither training nor waiting for others: asking, reporting,
telling, and retrying while the server is down. The median is over trials; the mean includes the outages.

    python -m benchmarks.agents --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import hpo
from hpo.service.auth import create_token
from storage.records import Trial
from storage.store import Store

ROOT = Path(__file__).parent.parent
NAME = "paced"
STUDY = """\
name: paced
workload: paced_workload:Paced
data: {{modes: 20, noise_scale: 0.5, train_samples: 512, seconds: {seconds}, log: {log}}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32, 64, 128]
search:
  learning_rate: {{log_uniform: [0.02, 1], role: scaled}}
  momentum: {{uniform: [0.5, 0.95], role: shared}}
  weight_decay: 0
budget: {{trials: {trials}, epochs_per_trial: 20, evaluations_per_epoch: 1}}
seeds: 2
"""
LIMIT_SECONDS = 900.0


@dataclass
class Result:
    """The result: broken rules, seconds, and the overhead of each trial that a surviving agent trained."""

    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    trials: int = 0
    states: dict[str, int] = field(default_factory=dict)
    killed: int = 0
    begun_again: int = 0
    overheads: list[float] = field(default_factory=list)
    cpu_overheads: list[float] = field(default_factory=list)
    server_cpu: float = 0.0

    @property
    def median(self) -> float:
        """The median overhead in seconds, over trials."""
        return statistics.median(self.overheads) if self.overheads else 0.0

    @property
    def mean(self) -> float:
        """The mean overhead in seconds, including outages of the server."""
        return statistics.fmean(self.overheads) if self.overheads else 0.0


class Server:
    """`hpo serve` on one port, killed and started again."""

    def __init__(self, folder: Path) -> None:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._folder = folder
        config = {
            "workloads": ["paced_workload:Paced"],
            "data_folders": [str(folder)],
            "port": self._port,
        }
        (folder / "server.yaml").write_text(json.dumps(config))
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.cpu_seconds = 0.0

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = ["serve", "--config", "server.yaml", "--no-worker"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hpo.cli.main", *command],
                cwd=self._folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=_environment(),
            )
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/health")
                return
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError((self._folder / "server.log").read_text()[-2000:])
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it, like a machine that loses power."""
        if self._process is not None:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
            ticks = stat.rpartition(")")[2].split()[11:13]  # utime and stime of proc(5)
            self.cpu_seconds += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            self._process.kill()
            self._process.wait()


def run(
    folder: Path,
    *,
    agents: int,
    trials: int,
    restarts: int,
    seed: int,
    seconds: float,
    lease_seconds: float = 10.0,
) -> Result:
    """Train one study by agents, a third of which are killed, while the server is restarted."""
    draw, result = random.Random(seed), Result(trials=trials)
    shutil.copy(ROOT / "benchmarks" / "paced_workload.py", folder)
    log = folder / "begun.jsonl"
    log.touch()
    server = Server(folder)
    with Store.open(f"sqlite:///{folder}/hpo.db") as store:
        secret, _ = create_token(store, owner="bench", scope="submit")
        server.start()
        text = STUDY.format(seconds=seconds, log=log, trials=trials)
        with hpo.Client(server.url, secret) as client:
            client.submit(text, for_agents=True)
        began = time.monotonic()
        with _agents(folder, agents, server.url, secret, lease_seconds) as running:
            # moments are given by the number of ended trials, so that all faults occur while there is work
            victims = draw.sample(range(agents), agents // 3)
            strikes = sorted(
                [(draw.uniform(0.05, 0.8) * trials, "agent", each) for each in victims]
                + [(draw.uniform(0.1, 0.8) * trials, "server", 0) for _ in range(restarts)]
            )
            while True:
                states = _states(store)
                ended = sum(n for state, n in states.items() if state not in ("queued", "running"))
                while strikes and ended >= strikes[0][0]:
                    _, what, which = strikes.pop(0)
                    if what == "agent":
                        running[which].send_signal(signal.SIGKILL)
                        result.killed += 1
                    else:
                        server.kill()
                        time.sleep(draw.uniform(0.5, 3.0))
                        server.start()
                over = all(process.poll() is not None for process in running)
                if over or time.monotonic() - began > LIMIT_SECONDS:
                    break
                time.sleep(0.2)
            result.seconds = time.monotonic() - began
        server.kill()
        result.server_cpu = server.cpu_seconds
        result.states = _states(store)
        _check(result, store, folder, log, victims)
    return result


def _states(store: Store) -> dict[str, int]:
    found: dict[str, int] = {}
    for of_batch in store.counts(store.study(NAME).id).values():
        for state, count in of_batch.items():
            found[str(state)] = found.get(str(state), 0) + count
    return found


def _check(result: Result, store: Store, folder: Path, log: Path, victims: list[int]) -> None:
    study = store.study(NAME)
    stored = store.trials(study.id)
    if study.state != "finished":
        result.faults.append(f"the study is {study.state}: {study.message}")
    if len(stored) != result.trials:
        result.faults.append(f"{len(stored)} trials, not {result.trials}")
    result.faults += [f"trial {t.number} is {t.state}" for t in stored if not t.state.finished]
    result.faults += [f"trial {t.number}: {t.reason}" for t in stored if t.state == "failed"]
    result.faults += _begun_after_end(result, stored, log)
    by_number = {str(trial.number): str(trial.state) for trial in stored}
    for number in range(len(list(folder.glob("agent-*.err")))):
        said = (folder / f"agent-{number}.err").read_text()
        for line in said.splitlines():
            words = line.split()
            if words[1:2] == ["trial"] and words[3:4] == ["of"] and words[-1] != "queued":
                if by_number.get(words[2]) != words[-1]:
                    result.faults.append(f"agent {number} was told {line!r}, not stored so")
            elif "Traceback" in line:
                result.faults.append(f"agent {number}: {said[-800:]}")
        if number in victims:
            continue
        try:
            told = json.loads((folder / f"agent-{number}.out").read_text())
        except ValueError:
            result.faults.append(f"agent {number} said nothing: {said[-300:]}")
            continue
        result.overheads += told["overheads"]
        result.cpu_overheads += told["cpu_overheads"]


def _begun_after_end(result: Result, stored: list[Trial], log: Path) -> list[str]:
    begun: dict[tuple[int, int], list[float]] = {}
    for line in log.read_text().splitlines():
        said = json.loads(line)
        begun.setdefault((said["global_batch_size"], said["seed"]), []).append(said["at"])
    result.begun_again = sum(len(times) - 1 for times in begun.values())
    return [
        f"trial {trial.number} began again after its end"
        for trial in stored
        if trial.finished_at is not None
        and max(begun.get((trial.global_batch_size, trial.seed), [0.0]))
        > trial.finished_at.timestamp()
    ]


@contextlib.contextmanager
def _agents(
    folder: Path, count: int, url: str, secret: str, lease_seconds: float
) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = {**_environment(), "HPO_SERVER": url, "HPO_TOKEN": secret}
    running = []
    for number in range(count):
        command = ["agent", NAME, "--json", "--name", f"agent {number}"]
        with (
            (folder / f"agent-{number}.out").open("wb") as out,
            (folder / f"agent-{number}.err").open("wb") as err,
        ):
            running.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "hpo.cli.main", *command),
                        *("--lease-seconds", str(lease_seconds)),
                    ],
                    cwd=folder,
                    env=environment,
                    stdout=out,
                    stderr=err,
                )
            )
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _environment() -> dict[str, Any]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each epoch of a training")
    parser.add_argument("--limit", type=float, default=0.2, help="seconds of overhead a trial")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hpo-agents-") as folder:
        result = run(
            Path(folder),
            agents=given.agents,
            trials=given.trials,
            restarts=given.restarts,
            seed=given.seed,
            seconds=given.seconds,
        )
    overheads = sorted(result.overheads)
    print(
        f"{given.agents} agents, {result.killed} killed, server restarted {given.restarts} times: "
        f"{sum(result.states.values())} trials in {result.seconds:.0f} s {result.states}, "
        f"{result.begun_again} trainings begun again; overhead a trial: median {result.median:.3f} s, "
        f"mean {result.mean:.3f} s, 95th percentile {overheads[int(0.95 * len(overheads))]:.3f} s; processor time a "
        f"trial: agent {statistics.median(result.cpu_overheads):.3f} s (median), server with its starts "
        f"{result.server_cpu / max(1, sum(result.states.values())):.3f} s; load {os.getloadavg()[0]:.1f}"
    )
    if result.median > given.limit:
        result.faults.append(
            f"the overhead is {result.median:.3f} s a trial, above {given.limit} s"
        )
    for fault in result.faults:
        print(f"BROKEN: {fault}")
    sys.exit(bool(result.faults))


if __name__ == "__main__":
    main()
