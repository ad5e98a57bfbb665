"""The cost of faults: workers killed, PostgreSQL restarted, a full disk, a Ray cluster that loses a machine.

Faults occur at moments drawn from ``--seed``. A witness records every finished trial that it sees; at the end every
study must be finished, and every trial must have exactly one result, the recorded one, and never have begun again after
it. Exits with 1 if one of these rules is broken.

    python -m benchmarks.faults --seed 1 --kills 50
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Fleet, Paced, Witness, all_ended, begun, fleet, kill, runs, wait_for
from benchmarks.private_postgres import PrivatePostgres, private_postgres
from storage.records import Event
from storage.store import Store

LIMIT = 300.0
"""Seconds after which a scenario that does not end counts as failed."""


@dataclass(frozen=True)
class Report:
    """The result of a scenario: the broken rules, and notable facts."""

    faults: list[str]
    told: str


def killed_workers(
    url: str,
    folder: Path,
    *,
    seed: int,
    kills: int,
    studies: int = 2,
    trials: int = 12,
    seconds: float = 0.02,
    window: float = 1.0,
    kind: str = "Paced",
) -> Report:
    """Kill -9 workers, up to ``window`` seconds after one began to train or, one in four, after it took a study.

    Each is replaced by a new one.
    """
    rng = random.Random(seed)
    done = before = 0
    with Store.open(url) as store, fleet(url, folder, "--max-attempts", "1000") as workers:
        for number in range(studies):
            Paced(f"study {number}", trials=trials, seconds=seconds, kind=kind).submit(
                store, folder
            )
        witness = Witness(store)
        for _ in range(kills):
            worker = workers.start()
            begins, trained = rng.random() < 0.25, _starts(folder)
            wait_for(
                lambda worker=worker, begins=begins, trained=trained: (  # type: ignore[misc]
                    _works(store, workers, worker, None if begins else (folder, trained))
                    or all_ended(store)
                ),
                LIMIT,
                "a worker to work on a study",
            )
            if all_ended(store):
                break
            time.sleep(rng.uniform(0, window))
            before = witness.look()
            kill(worker)
            done += 1
        # a draining worker would end: the queue is empty until the last killed worker's lease has expired
        workers.start()
        wait_for(lambda: all_ended(store), LIMIT, "the studies to end")
        taken = [
            event
            for event in store.events(limit=100_000)
            if event.kind in ("claimed", "taken_over")
        ]
        faults = witness.faults(folder)
    over = sum(event.kind == "taken_over" for event in taken)
    return Report(
        faults,
        f"{done} workers killed, {before} of {studies * trials} trials finished at the last kill; "
        f"{over} take-overs, {_starts(folder)} starts of {studies * trials} trials",
    )


def restarted_postgres(
    server: PrivatePostgres,
    url: str,
    folder: Path,
    *,
    seed: int,
    restarts: int,
    away: float = 1.0,
    trials: int = 24,
) -> Report:
    """Stop the database as in a crash, at random moments of a sweep, and restart it."""
    rng = random.Random(seed)
    with Store.open(url) as store, fleet(url, folder) as workers:
        Paced("restarted", trials=trials, seconds=0.02).submit(store, folder)
        worker, witness = workers.start("--once"), Witness(store)
        wait_for(lambda: runs(store, worker), LIMIT, "the worker to take the study")
        for _ in range(restarts):
            time.sleep(rng.uniform(0.2, 1.0))
            witness.look()
            server.stop()
            time.sleep(away)
            server.start()
            wait_for(lambda: _answers(store), LIMIT, "the database")
        worker.wait(LIMIT)
        faults = witness.faults(folder)
        attempts = store.studies()[0].attempts
    if attempts != 1:
        faults.append(f"the study was started {attempts} times, not once")
    back = workers.said().count("the database is back")
    return Report(
        faults,
        f"{restarts} restarts of {away:g} s; the worker waited {back} times for a write and went on",
    )


def full_disk(folder: Path, *, seed: int, trials: int = 16) -> Report:
    """Keep all worker files from growing, from a random moment of a sweep on SQLite until the limit is lifted."""
    rng = random.Random(seed)
    url = f"sqlite:///{folder}/hpo.db"
    with Store.open(url) as store, fleet(url, folder) as workers:
        Paced("full", trials=trials, seconds=0.02).submit(store, folder)
        worker, witness = workers.start("--once"), Witness(store)
        wait_for(lambda: runs(store, worker), LIMIT, "the worker to take the study")
        time.sleep(rng.uniform(0.1, 0.8))
        free = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, free[1]))
        wait_for(
            lambda: "kept in memory" in workers.said() or worker.poll() is not None,
            LIMIT,
            "a write to fail",
        )
        witness.look()
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, free)
        worker.wait(LIMIT)
        faults = witness.faults(folder)
        attempts = store.studies()[0].attempts
    if attempts != 1:
        faults.append(f"the study was started {attempts} times, not once")
    waits = [line for line in workers.said().splitlines() if "kept in memory" in line]
    if not waits:
        faults.append("no write failed")
    return Report(faults, f"said: {waits[0].partition(': ')[2] if waits else ''}")


def lost_machine(folder: Path, *, seed: int, trials: int = 8, seconds: float = 0.1) -> Report:
    """Kill one of three machines of a Ray cluster (Ray's own utility) during a sweep.

    The environment must have RAY_AUTH_MODE=token and RAY_AUTH_TOKEN: a cluster without a token is refused.
    """
    from ray.cluster_utils import Cluster

    rng = random.Random(seed)
    url = f"sqlite:///{folder}/hpo.db"
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        lost, _ = (cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(2))
        with (
            Store.open(url) as store,
            fleet(url, folder, "--ray-address", cluster.address) as workers,
        ):
            Paced("cluster", trials=trials, seconds=seconds, kind="OnRay").submit(store, folder)
            worker, witness = workers.start("--once"), Witness(store)
            wait_for(
                lambda: len(begun("cluster", folder)) >= 3, LIMIT, "a training on every machine"
            )
            time.sleep(rng.uniform(0, 5 * seconds))
            seen = witness.look()
            cluster.remove_node(lost, allow_graceful=False)
            worker.wait(LIMIT)
            faults = witness.faults(folder)
            again = len(begun("cluster", folder)) - trials
    finally:
        cluster.shutdown()
    return Report(
        faults,
        f"one of three machines killed after {seen} trials; {again} trainings began again elsewhere",
    )


def drained_queue(url: str, folder: Path, *, workers: int, studies: int) -> Report:
    """Run tiny studies with many workers: each study must be run exactly once."""
    started = time.monotonic()
    with Store.open(url) as store, fleet(url, folder) as some:
        for number in range(studies):
            Paced(f"tiny {number}", trials=4, epochs=4, seconds=0).submit(store, folder)
        for process in [some.start("--drain") for _ in range(workers)]:
            process.wait(10 * LIMIT)
        seconds = time.monotonic() - started
        faults = Witness(store).faults(folder)
        faults += [
            f"{study.name} was started {study.attempts} times"
            for study in store.studies()
            if study.attempts != 1
        ]
    return Report(
        faults,
        f"{studies} studies by {workers} workers in {seconds:.0f} s, their start included: "
        f"{studies / seconds:.1f} a second",
    )


def cost_of_ray(folder: Path, *, rounds: int = 5, trials: int = 6) -> Report:
    """Time the same tiny study by one worker: trained in its process, and on a persistent Ray."""
    medians = {}
    url = f"sqlite:///{folder}/hpo.db"
    with Store.open(url) as store, fleet(url, folder, "--cores", "2") as workers:
        for number in range(rounds + 1):
            for kind in ("Paced", "OnRay"):
                Paced(f"{kind} {number}", trials=trials, epochs=10, seconds=0, kind=kind).submit(
                    store, folder
                )
        workers.start("--drain").wait(LIMIT)
        events = store.events(limit=100_000)
        faults = Witness(store).faults(folder)
    if faults:
        return Report(faults, workers.said()[-500:].replace("\n", " "))
    for kind in ("Paced", "OnRay"):
        # the first study of each kind also loads libraries or starts Ray
        medians[kind] = statistics.median(
            _seconds(events, f"{kind} {number}") for number in range(1, rounds + 1)
        )
    here, ray = medians["Paced"], medians["OnRay"]
    return Report(
        faults,
        f"a study of {trials} trials, median of {rounds}: {here:.2f} s in the worker's process, "
        f"{ray:.2f} s on Ray that was started before: {ray / here:.0f} times",
    )


def _seconds(events: Sequence[Event], study: str) -> float:
    at = {event.kind: event.at for event in events if event.study_name == study}
    return (at["finished"] - at["claimed"]).total_seconds()


def _works(
    store: Store,
    workers: Fleet,
    worker: subprocess.Popen[bytes],
    more_than: tuple[Path, int] | None,
) -> bool:
    """Whether the worker holds a study and, if requested, has begun to train; RuntimeError if it ended."""
    if worker.poll() not in (None, 0):
        raise RuntimeError(f"a worker ended by itself:\n{workers.said()[-2000:]}")
    return runs(store, worker) and (more_than is None or _starts(more_than[0]) > more_than[1])


def _starts(folder: Path) -> int:
    """Return how many trainings have started or resumed from a checkpoint."""
    return sum(len(log.read_text().splitlines()) for log in folder.glob("study-*.jsonl"))


def _answers(store: Store) -> bool:
    from storage.errors import StoreUnavailable

    try:
        store.studies()
    except StoreUnavailable:
        return False
    return True


def main() -> None:
    """Run the scenarios and print a table row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ray-kills", type=int, default=5, help="of workers with trials on Ray")
    parser.add_argument("--studies", type=int, default=500, help="tiny studies to drain")
    parser.add_argument("--only", help="part of a scenario's name")
    options = parser.parse_args()
    seed, kills = options.seed, options.kills
    # a cluster without a token is refused; the processes that start and join it share this process's token
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    broken = 0
    with private_postgres() as server:
        scenarios: dict[str, Callable[[Path], Report]] = {
            "kill -9, SQLite": lambda folder: killed_workers(
                f"sqlite:///{folder}/hpo.db",
                folder,
                seed=seed,
                kills=kills,
                studies=3,
                trials=8 + 2 * kills,
            ),
            "kill -9, PostgreSQL": lambda folder: killed_workers(
                server.url(server.new_database()),
                folder,
                seed=seed,
                kills=kills,
                studies=3,
                trials=8 + 2 * kills,
            ),
            "kill -9 with trials on Ray": lambda folder: killed_workers(
                f"sqlite:///{folder}/hpo.db",
                folder,
                seed=seed,
                kills=options.ray_kills,
                studies=1,
                trials=8 + 10 * options.ray_kills,
                seconds=0.1,
                window=2,
                kind="OnRay",
            ),
            "PostgreSQL restarted": lambda folder: restarted_postgres(
                server,
                server.url(server.new_database()),
                folder,
                seed=seed,
                restarts=max(kills // 5, 1),
                trials=20 + 2 * kills,
            ),
            "full disk, SQLite": lambda folder: full_disk(folder, seed=seed),
            "machine of a Ray cluster lost": lambda folder: lost_machine(folder, seed=seed),
            "none: what Ray costs a tiny study": cost_of_ray,
            "queue drained": lambda folder: drained_queue(
                server.url(server.new_database()), folder, workers=8, studies=options.studies
            ),
        }
        print("| fault | rules broken | what happened |\n|---|---|---|")
        for name, scenario in scenarios.items():
            if options.only is None or options.only in name:
                with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                    report = scenario(Path(folder))
                print(f"| {name} | {len(report.faults)} | {report.told} |", flush=True)
                print(*report.faults, sep="\n", file=sys.stderr)
                broken += len(report.faults)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
