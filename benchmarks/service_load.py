"""Concurrent clients that submit and read, against one server with PostgreSQL: errors and response times.

The server is one ``hpo serve`` process, PostgreSQL a private one from the ``pgserver`` wheel, and the clients are
``hpo.AsyncClient`` objects, one connection each, in a separate process; all share this machine. The database already
holds studies with trials and curves. Each client makes random requests with pauses in between; with ``--pause 0`` it
repeats at once, so that the response time measures the server's throughput.

With ``--hostile`` two more users do all the harm that their tokens allow, from separate addresses and processes: a
reader requests expensive data without a pause (a hundred curves, forecasts at ever new batch sizes, streams, odd
queries), a submitter sends studies that are slow to refuse and queues, cancels and resumes studies. Their refusals are
counted separately.

The CPU time of each process is reported too: if their sum is the machine's, clients wait for a processor, and the
clients themselves are part of that load.

    python -m benchmarks.service_load [--clients N] [--owners N] [--seconds S] [--pause S] [--hostile]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import httpx

import hpo
from benchmarks.private_postgres import private_postgres
from hpo.client.retries import RetryPolicy
from hpo.service.auth import create_token
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewStudy, NewTrial, TrialResult, TrialState
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


HOSTILE_CONNECTIONS = 8
"""Concurrent connections of each of the two hostile users."""
Asked: TypeAlias = tuple[str, str, dict[str, object] | None]
"""Method, path below /api/v1 and JSON body."""


def main() -> None:
    """Print a row for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.25,
        help="mean pause of a client between requests, in seconds",
    )
    parser.add_argument(
        "--owners", type=int, help="that the clients belong to, by turns; one each if not given"
    )
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="a hostile reader and a hostile submitter beside them",
    )
    given = parser.parse_args()
    met: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder, private_postgres() as server:
        storage = server.url(server.new_database())
        server.wait_for_commits(False)
        with Store.open(storage) as store:
            fill(store)
        server.wait_for_commits(True)
        with Store.open(storage) as store:
            owners = given.owners or given.clients
            tokens = [
                create_token(store, owner=f"owner {number}", scope="submit")[0]
                for number in range(owners)
            ]
            hostile = {
                scope: create_token(store, owner=f"hostile {scope}", scope=scope)[0]
                for scope in HOSTILE
                if given.hostile
            }
        with (
            serving(storage, Path(folder)) as (url, served),
            ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
        ):
            began = processor_seconds(served.pid, server.pid)
            begun = {
                scope: pool.submit(do_harm, url, secret, scope, given.seconds)
                for scope, secret in hostile.items()
            }
            waits, errors = asyncio.run(
                load(url, tokens, given.clients, given.seconds, given.pause)
            )
            ended = processor_seconds(served.pid, server.pid)
            spent = {name: seconds - began.get(name, 0.0) for name, seconds in ended.items()}
            for scope, each in begun.items():
                met[scope], spent[f"hostile {scope}"] = each.result()
        with Store.open(storage) as store:
            stored = Counter(study.name.split()[0] for study in store.studies())
    report(waits, errors, given.seconds)
    shares = ", ".join(f"{name} {each / given.seconds:.2f}" for name, each in spent.items())
    print(f"\nprocessors in use, of {os.cpu_count()}: {shares}")
    for scope, statuses in met.items():
        told = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
        print(f"\nhostile, {scope}: {told}")
    submitted = len(waits["submit"])
    print(f"\n{stored['submitted']} studies stored of {submitted} submitted")
    if errors or stored["submitted"] != submitted:
        sys.exit(1)


def fill(store: Store) -> None:
    """Add studies with finished trials and their curves."""
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
            NewStudy(
                name=name,
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec=SPEC.format(name=name),
            )
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


def processor_seconds(server: int, database: int) -> dict[str, float]:
    """Return the CPU time so far of the server, its child processes, the database, and the clients here."""
    spent, parents = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = (process / "stat").read_text().rpartition(")")[2].split()
            parents[int(process.name)] = int(told[1])
            spent[int(process.name)] = (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    def below(pid: int) -> float:
        return sum(spent[each] + below(each) for each, parent in parents.items() if parent == pid)

    return {
        "server": spent[server],
        "its checks and fits": below(server),
        "database": spent[database] + below(database),
        "clients": time.process_time(),
    }


@contextmanager
def serving(storage: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server process; provide its URL and the process."""
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
        for _ in range(1200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


async def load(url: str, tokens: Sequence[str], clients: int, seconds: float, pause: float):
    """Return the seconds of every request by kind, and the errors by text; the clients share the tokens."""
    waits: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    async with hpo.AsyncClient(url, tokens[0]) as first:
        await first.submit(SPEC.format(name="warm"))  # the server learns the workload's metrics
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            token = tokens[number % len(tokens)]
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
    """Run one client until the end."""
    draw = random.Random(number)
    submissions = 0
    async with hpo.AsyncClient(
        url, token, retries=RetryPolicy(attempts=1)
    ) as client:  # failures must show
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


def dear_reads() -> Iterator[Asked]:
    """Yield the most expensive requests that a reading token allows."""
    for number in itertools.count():
        study = f"/studies/stored%20{number % STUDIES}"
        curves = "&".join(f"trial={each}" for each in range(100))
        yield "GET", f"{study}/convergence?{curves}", None
        yield "GET", f"{study}/forecast?at={128 + number}", None
        yield "GET", f"{study}/trials?limit=1000&search={'%25' * 50}", None
        yield "GET", f"{study}/events", None
        yield "GET", "/calibration", None
        yield "GET", "/studies?limit=1000", None


def dear_submissions() -> Iterator[Asked]:
    """Yield studies that are slow to check, and many that are queued, cancelled and resumed."""
    prime = SPEC.replace("[16, 32, 64]", f"[{2**31 - 1}]")
    faults = SPEC.replace("[16, 32, 64]", f"[{', '.join(['x'] * 15_000)}]")
    path = f"{SPEC}data: {{{{path: {'/tmp/..' * 60_000}}}}}\n"
    swelling = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
        for old, new in itertools.pairwise("abcdefghi")
    )
    for number in itertools.count():
        name = f"hostile {number}"
        for text in (prime, faults, path):
            yield "POST", "/studies", {"spec": text.format(name=name)}
        yield "POST", "/studies", {"spec": swelling}
        yield "POST", "/studies", {"spec": SPEC.format(name=name)}
        yield "POST", f"/studies/hostile%20{number}/cancel", None
        yield "POST", f"/studies/hostile%20{number}/resume", None


HOSTILE: dict[str, Callable[[], Iterator[Asked]]] = {
    "read": dear_reads,
    "submit": dear_submissions,
}


def do_harm(url: str, token: str, scope: str, seconds: float) -> tuple[Counter[str], float]:
    """Make expensive requests without a pause; return the count of each status, and the CPU time of the client."""
    before, number = time.process_time(), list(HOSTILE).index(scope)
    statuses = asyncio.run(_do_harm(url, token, HOSTILE[scope](), seconds, number))
    return statuses, time.process_time() - before


async def _do_harm(
    url: str, token: str, wanted: Iterator[Asked], seconds: float, number: int
) -> Counter[str]:
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def one(client: httpx.AsyncClient) -> None:
        while time.monotonic() < until:
            method, path, body = next(wanted)
            try:
                async with client.stream(method, f"/api/v1{path}", json=body) as answer:
                    statuses[str(answer.status_code)] += 1
                    if not path.endswith("/events"):  # streams are left open unread
                        await answer.aread()
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1

    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
        transport=httpx.AsyncHTTPTransport(local_address=f"127.0.0.{2 + number}"),
    ) as client:
        await asyncio.gather(*(one(client) for _ in range(HOSTILE_CONNECTIONS)))
    return statuses


async def ask(client: hpo.AsyncClient, kind: str, draw: random.Random, name: str) -> None:
    """Make one request of a kind; ``name`` is for the study that it may submit."""
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
    """Print the table."""
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
