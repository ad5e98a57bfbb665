"""Clients that submit and read, all at once, against one server with PostgreSQL: errors, and how long they wait.

The server is one ``hpo serve`` process, PostgreSQL a private one of the ``pgserver`` wheel, and the clients are
``hpo.AsyncClient`` objects, a connection each, in a process of their own; all share this machine. The database holds
studies with trials and curves already. Each client draws what it asks for, and pauses between two requests; with
``--pause 0`` it asks again at once, so that the wait tells the server's throughput.

    python -m benchmarks.service_load [--clients N] [--seconds S] [--pause S]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path

import hpo
from benchmarks.private_postgres import private_postgres
from hpo.client.retries import RetryPolicy
from hpo.service.auth import create_token
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewTrial, TrialResult, TrialState
from storage.store import Store

STUDIES, TRIALS, POINTS = 40, 200, 200
SUBMITTED = 0.1
"""The share of requests that submit a study."""
READS = ("list of studies", "a study", "page of 100 trials", "curves of 4 trials", "events")
SPEC = """\
name: {name}
workload: noisy_quadratic
target: {{metric: loss, at_most: 0.1}}
ladder: [16, 32, 64]
search:
  learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}
  normalization_batch_size: 1
budget: {{trials: 30, epochs_per_trial: 20}}
"""


def main() -> None:
    """Print a row per kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.25,
        help="mean pause of a client between requests, in seconds",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, private_postgres() as server:
        storage = server.url(server.new_database())
        with Store.open(storage) as store:
            fill(store)
            token, _ = create_token(store, owner="bench", scope="submit")
        with serving(storage, Path(folder)) as url:
            waits, errors = asyncio.run(load(url, token, given.clients, given.seconds, given.pause))
        with Store.open(storage) as store:
            stored = Counter(study.name.split()[0] for study in store.studies())
    report(waits, errors, given.seconds)
    submitted = len(waits["submit"])
    print(f"\n{stored['submitted']} studies stored of {submitted} submitted")
    if errors or stored["submitted"] != submitted:
        sys.exit(1)


def fill(store: Store) -> None:
    """Studies with finished trials and their curves."""
    settings = TrainingSettings(learning_rate=0.1, normalization_batch_size=1).to_dict()
    points = [
        ConvergencePoint(
            step, 16 * step, step / 32, step / 100, 1 / step, 1 / step, 1 / step, 0.1, 16
        )
        for step in range(1, POINTS + 1)
    ]
    for number in range(STUDIES):
        name = f"stored {number}"
        study = store.create_study(
            name,
            workload="noisy_quadratic",
            metric="loss",
            threshold=0.1,
            higher_is_better=False,
            spec=SPEC.format(name=name),
        )
        trials = store.add_trials(
            study.id,
            [
                NewTrial(global_batch_size=16 << (seed % 3), seed=seed, settings=settings)
                for seed in range(TRIALS)
            ],
        )
        store.record({trial.id: points for trial in trials})
        for trial in trials:
            store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.REACHED,
                    epochs_to_target=4.0,
                    epochs=6.0,
                    steps=200,
                    seconds=2.0,
                ),
            )


@contextmanager
def serving(storage: str, folder: Path):
    """A server process; its URL."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "hpo.cli.main",
        "serve",
        "--no-worker",
        "--storage",
        storage,
        "--port",
        str(port),
    ]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


async def load(url: str, token: str, clients: int, seconds: float, pause: float):
    """Seconds of every request by kind, and the errors by their text."""
    waits: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    async with hpo.AsyncClient(url, token) as first:
        await first.submit(SPEC.format(name="warm"))  # the server learns the workload's metrics
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client_at_work(url, token, number, until, pause, waits, errors))
    return waits, errors


async def client_at_work(
    url: str,
    token: str,
    number: int,
    until: float,
    pause: float,
    waits: dict[str, list[float]],
    errors: Counter[str],
) -> None:
    """One client until the end."""
    draw = random.Random(number)
    submissions = 0
    async with hpo.AsyncClient(
        url, token, retries=RetryPolicy(attempts=1)
    ) as client:  # a failure shows
        while time.monotonic() < until:
            kind = "submit" if draw.random() < SUBMITTED else draw.choice(READS)
            submissions += kind == "submit"
            began = time.perf_counter()
            try:
                await ask(client, kind, draw, f"submitted {number} {submissions}")
                waits[kind].append(time.perf_counter() - began)
            except hpo.HpoError as error:
                errors[str(error)[:200]] += 1
            if pause:
                await asyncio.sleep(draw.expovariate(1 / pause))


async def ask(client: hpo.AsyncClient, kind: str, draw: random.Random, name: str) -> None:
    """One request of a kind; ``name`` is for the study that it would submit."""
    study, trial = client.study(f"stored {draw.randrange(STUDIES)}"), draw.randrange(TRIALS)
    if kind == "submit":
        await client.submit(SPEC.format(name=name))
    elif kind == "list of studies":
        await client.document("studies")
    elif kind == "a study":
        await study.status()
    elif kind == "page of 100 trials":
        await client.document("studies", study.name, "trials")
    elif kind == "curves of 4 trials":
        await study.convergence([(trial + each) % TRIALS for each in range(4)])
    else:
        await study.logs()


def report(waits: dict[str, list[float]], errors: Counter[str], seconds: float) -> None:
    """The table."""
    print(
        "| request | number | median ms | p95 ms | p99 ms | longest ms |\n|---|---|---|---|---|---|"
    )
    reads = [wait for kind, each in waits.items() if kind != "submit" for wait in each]
    for kind, each in [*sorted(waits.items()), ("all that read", reads)]:
        ranks = statistics.quantiles(each, n=100, method="inclusive")
        print(
            f"| {kind} | {len(each)} | {1e3 * ranks[49]:.0f} | {1e3 * ranks[94]:.0f} | {1e3 * ranks[98]:.0f} | "
            f"{1e3 * max(each):.0f} |"
        )
    print(
        f"\n{sum(map(len, waits.values())) / seconds:.0f} requests a second, {sum(errors.values())} errors"
    )
    for text, count in errors.most_common(5):
        print(f"  {count} x {text}")


if __name__ == "__main__":
    main()
