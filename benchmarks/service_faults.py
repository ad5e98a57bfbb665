"""A whole service under random faults for some minutes: server, workers, launched runs and database.

Clients submit studies through the API while a fault occurs every few seconds: kill -9 of the server, of a worker, of
the launcher of a validation run or of one of its ranks; files that may not grow (a full disk); an unavailable database
(PostgreSQL stopped as in a crash, SQLite locked by another process). After ``--seconds`` the faults stop, and all
submitted studies must finish. Rules:

- every study whose submission was acknowledged exists and ends as finished, with as many trials as it asks for;
- a trial that was seen finished is unchanged and never begins again, and none is duplicated;
- a run of a plan has one outcome, never begins after it, and never has two launchers at a time;
- at the end no process is left behind.

With ``--hostile`` a user meanwhile does all the harm that a token allows (``benchmarks/hostile_users.py``): no response
may be an internal error, and the rules apply to the others' studies. Exits with 1 if a rule is broken.

    python -m benchmarks.service_faults --database sqlite --seconds 600 --seed 1 [--hostile] [--calm]
    python -m benchmarks.service_faults --database postgresql --seconds 600 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import hpo
from benchmarks.dashboard_browser import free_port
from benchmarks.fleet import ROOT, STUDY, Fleet, Witness, all_ended, begun, fleet, log_of, wait_for
from benchmarks.hostile_users import HonestReader, HostileUser, write_scripts
from benchmarks.private_postgres import PrivatePostgres, private_postgres
from hpo.client.retries import RetryPolicy
from hpo.errors import UnreachableError
from hpo.service.auth import create_token
from storage.errors import StoreUnavailable
from storage.store import Store

LIMIT = 1800.0
"""Seconds within which the submitted studies must finish after the last fault."""

LEASE_SECONDS = "5"
"""Lease of the workers: long enough for a busy machine, short compared with the whole run."""

WORKERS = 2
WAITING = 3
"""Another study is submitted if fewer than this wait or run."""

RUN_SECONDS = 0.5
"""Seconds per evaluation of a launched run, so that its ranks live long enough to be killed."""

STRIKES_OF_A_RUN = 2
"""Most faults for one run of a plan, as it gives up after three restarts."""

KINDS = (
    "server killed",
    "worker killed",
    "launcher killed",
    "rank killed",
    "disk full",
    "database away",
)
LONG = 300.0
"""A run of at least this many seconds must have had every kind of fault."""

HOSTILE = "hostile"
"""The hostile owner."""

VALIDATED = "full_scale: {global_batch_size: 64, machine: local, workers: 2, validate: true}\n"
CONFIGURATION = """\
storage: {url}
port: {port}
folder: {folder}/.hpo
data_folders: [{folder}]
workloads: ["paced_workload:Paced", program, noisy_quadratic]
"""


@dataclass
class Service:
    """One `hpo serve` and its workers, which are restarted when killed."""

    url: str
    folder: Path
    workers: Fleet
    port: int = field(default_factory=free_port)
    server: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Whether it accepts submissions."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.address}/ready", timeout=5).status_code == 200
        return False

    def start_server(self) -> None:
        """Start it on its previous port."""
        file = self.folder / "server.yaml"
        file.write_text(CONFIGURATION.format(url=self.url, port=self.port, folder=self.folder))
        command = [sys.executable, "-m", "hpo.cli.main", "serve", "--config", str(file)]
        path = os.pathsep.join([str(ROOT), str(self.folder), os.environ.get("PYTHONPATH", "")])
        with (self.folder / "serve.log").open("ab") as log:
            self.server = subprocess.Popen(
                [*command, "--no-worker"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            )

    def supervise(self) -> None:
        """Restart processes that ended by themselves, as a supervisor does, since the database was unavailable."""
        if self.server is not None and self.server.poll() is not None:
            self.start_server()
        while len(self.running_workers()) < WORKERS:
            self.workers.start()

    def pid(self) -> int | None:
        """Return the server's process id, while it is alive."""
        return None if self.server is None or self.server.poll() is not None else self.server.pid

    def running_workers(self) -> list[subprocess.Popen[bytes]]:
        """Return the live workers."""
        return [process for process in self.workers.processes if process.poll() is None]

    def stop(self) -> None:
        """Stop all with SIGTERM, as an administrator does."""
        for process in (*self.running_workers(), self.server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.running_workers(), self.server):
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)


def processes(folder: Path) -> Mapping[int, list[str]]:
    """Return the command of every other live process whose command contains the folder, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        own = int(process.name) == os.getpid()
        if any(str(folder) in word for word in words) and state != "Z" and not own:
            found[int(process.name)] = words
    return found


def parent_of(pid: int) -> int:
    """Return the process id of its parent, 0 if the process has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def launchers(folder: Path) -> dict[int, str]:
    """Return the job files of the runs with live launchers, by the launcher's process id."""
    return {
        pid: next(word for word in words if word.endswith("job.json"))
        for pid, words in processes(folder).items()
        if "trainers.local_workers" in words
    }


def ranks(folder: Path) -> dict[int, str]:
    """Return the job files of the runs with live ranks, by the rank's process id."""
    return {
        pid: next(word for word in words if word.endswith("job.json"))
        for pid, words in processes(folder).items()
        if "trainers" in words and "trainers.local_workers" not in words
    }


class Clients:
    """A thread that submits studies and records those acknowledged; one at a time is validated."""

    def __init__(self, service: Service, store: Store, token: str) -> None:
        self.acknowledged: list[str] = []
        self.refused: Counter[str] = Counter()  # refused by a reachable server
        self.unacknowledged = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._submit, args=(service, store, token))

    def _submit(self, service: Service, store: Store, token: str) -> None:
        number, validated = 0, None
        with hpo.Client(service.address, token, retries=RetryPolicy(attempts=30)) as client:
            while not self._ended.wait(1.0):
                ended = _ended_studies(store)
                if len(set(self.acknowledged) - ended) >= WAITING:
                    continue
                number += 1
                name = f"study {number}"
                if validated is None or validated in ended:
                    validated = name
                text = STUDY.format(
                    name=name,
                    kind="Paced",
                    seconds=0.05,
                    run_seconds=RUN_SECONDS,
                    log=log_of(name, service.folder),
                    trials=12,
                    epochs=10,
                    more=VALIDATED if name == validated else "",
                )
                try:
                    client.submit(text)
                    self.acknowledged.append(name)
                except hpo.HpoError as error:  # not acknowledged: it may exist or not
                    validated = None if name == validated else validated
                    unreached = isinstance(error, UnreachableError)
                    self.unacknowledged += 1
                    self.refused[str(error)[:300]] += not unreached

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def _ended_studies(store: Store) -> set[str]:
    try:
        return {study.name for study in store.studies() if study.state in ("finished", "failed")}
    except StoreUnavailable:
        return set()


class Strikes:
    """The faults; each also repairs its damage if needed."""

    def __init__(
        self, service: Service, draw: random.Random, postgres: PrivatePostgres | None
    ) -> None:
        self._service, self._draw, self._postgres = service, draw, postgres
        self._of_run: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        """Cause one fault; while a run of a plan is active, every other fault targets it."""
        service = self._service
        service.supervise()
        aims: list[tuple[str, Callable[[], bool]]] = [
            ("server killed", self._kill_server),
            ("worker killed", self._kill_worker),
            ("disk full", self._full_disk),
            ("database away", self._database_away),
        ]
        if launchers(service.folder) and self._draw.random() < 0.5:
            aims = [("launcher killed", self._kill_launcher)]
            if ranks(service.folder):
                aims = [*aims, ("rank killed", self._kill_rank), ("rank killed", self._kill_rank)]
        name, strike = self._draw.choice(aims)
        self.done[name] += strike()

    def _kill_server(self) -> bool:
        server = self._service.server
        if server is None:
            return False
        server.kill()
        server.wait()
        time.sleep(self._draw.uniform(0, 1))
        self._service.start_server()
        return True

    def _kill_worker(self) -> bool:
        worker = self._draw.choice(self._service.running_workers())
        worker.kill()
        worker.wait()
        self._service.supervise()
        return True

    def _kill_launcher(self) -> bool:
        return self._kill_of_run(launchers(self._service.folder))

    def _kill_rank(self) -> bool:
        return self._kill_of_run(ranks(self._service.folder))

    def _kill_of_run(self, runs: Mapping[int, str]) -> bool:
        open_to = {pid: job for pid, job in runs.items() if self._of_run[job] < STRIKES_OF_A_RUN}
        if not open_to:
            return False
        pid, job = self._draw.choice(sorted(open_to.items()))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._of_run[job] += 1
            return True
        return False

    def _full_disk(self) -> bool:
        """Keep the files of a sweeping worker from growing for a moment; a launched run ends if its disk is full."""
        busy = {parent_of(pid) for pid in launchers(self._service.folder)}
        sweeping = [each for each in self._service.running_workers() if each.pid not in busy]
        if not sweeping:
            return False
        worker = self._draw.choice(sweeping)
        _limit_files(worker.pid, 4096)
        time.sleep(self._draw.uniform(0.5, 2))
        _limit_files(worker.pid, resource.RLIM_INFINITY)
        for pid in processes(self._service.folder):
            _limit_files(pid, resource.RLIM_INFINITY)
        return True

    def _database_away(self) -> bool:
        away = self._draw.uniform(0.5, 3)
        if self._postgres is not None:
            self._postgres.stop()
            time.sleep(away)
            self._postgres.start()
            return True
        file = self._service.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(file, timeout=30)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(away)
            other.rollback()
        return True


def _limit_files(pid: int, most: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


class Watch:
    """A thread that looks for two simultaneous launchers of one run, which no stored data would show."""

    def __init__(self, folder: Path) -> None:
        self.faults: set[str] = set()
        self._folder, self._ended = folder, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            twice = [
                job for job, count in Counter(launchers(self._folder).values()).items() if count > 1
            ]
            if twice and self._ended.wait(1.0) is False:  # a killed one takes a moment to disappear
                still = Counter(launchers(self._folder).values())
                self.faults |= {f"{job} has two launchers" for job in twice if still[job] > 1}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def faults_of_runs(store: Store, folder: Path) -> tuple[list[str], int]:
    """Return the faults in the runs of the plans, and the number of runs."""
    found, count = [], 0
    for study in store.studies():
        for plan in store.plans(study.id):
            outcomes = store.outcomes(plan.id)
            count += len(outcomes)
            seeds = Counter(outcome.seed for outcome in outcomes)
            found += [
                f"{study.name}, plan {plan.id}: {number} outcomes with seed {seed}"
                for seed, number in seeds.items()
                if number > 1
            ]
            rate = plan.settings["learning_rate"]
            for outcome in outcomes:
                late = [
                    each
                    for each in begun(study.name, folder)
                    if (each["global_batch_size"], each["seed"], each["learning_rate"])
                    == (plan.global_batch_size, outcome.seed, rate)
                    and each["at"] > outcome.created_at.timestamp() + 0.001
                ]
                found += [
                    f"{study.name}, plan {plan.id}, seed {outcome.seed}: begun after its end"
                ] * bool(late)
    return found, count


def lost(store: Store, acknowledged: Sequence[str]) -> list[str]:
    """Return the acknowledged studies that do not exist."""
    there = {study.name for study in store.studies()}
    return [
        f"{name} was acknowledged and is not there" for name in acknowledged if name not in there
    ]


def cancel_hostile(store: Store) -> None:
    """Cancel the studies of the hostile user, which nobody waits for."""
    for study in store.studies():
        if study.owner == HOSTILE:
            store.request_cancel(study.id)


def run(
    url: str,
    folder: Path,
    *,
    seconds: float,
    seed: int,
    postgres: PrivatePostgres | None = None,
    hostile: bool = False,
    calm: bool = False,
) -> tuple[list[str], str]:
    """Run the benchmark; return the broken rules and a summary."""
    (folder / "paced_workload.py").write_text((ROOT / "benchmarks/paced_workload.py").read_text())
    with Store.open(url) as store:
        token, _ = create_token(store, owner="bench", scope="submit")
        with (
            fleet(
                url, folder, "--max-attempts", "1000", "--lease-seconds", LEASE_SECONDS
            ) as workers,
            _stopped(Service(url, folder, workers)) as service,
        ):
            service.start_server()
            service.supervise()
            wait_for(service.is_ready, LIMIT, "the server")
            strikes = Strikes(service, random.Random(seed), postgres)
            witness, until = Witness(store, besides=HOSTILE), time.monotonic() + seconds
            draw = random.Random(seed + 1)
            reader = HonestReader(service.address, token, service.pid)
            with Watch(folder) as watch:
                with contextlib.ExitStack() as users:
                    clients = users.enter_context(Clients(service, store, token))
                    users.enter_context(reader)
                    if hostile:
                        harmful, _ = create_token(store, owner=HOSTILE, scope="submit")
                        user = HostileUser(service.address, harmful, write_scripts(folder))
                        users.enter_context(user)
                    while time.monotonic() < until:
                        time.sleep(draw.uniform(1, 6))
                        with contextlib.suppress(StoreUnavailable):
                            witness.look()
                        if not calm:
                            strikes.one()
                    service.supervise()
                cancel_hostile(store)
                began = time.monotonic()

                def ended() -> bool:
                    service.supervise()
                    return all_ended(store)

                wait_for(ended, LIMIT, "the studies to end")
            faults = witness.faults(folder) + sorted(watch.faults)
            faults += [f"submission refused: {text}" for text in +clients.refused]
            faults += [f"internal error for the honest: {text}" for text in reader.wrong]
            if hostile and user.statuses["500"]:
                faults.append(f"internal error: {user.statuses['500']} times")
            faults += lost(store, clients.acknowledged)
            of_runs, runs = faults_of_runs(store, folder)
            faults += of_runs
            trials = sum(store.totals().trials.values())
            if not (trials and runs):
                faults.append(f"nothing was tried: {trials} trials, {runs} runs of plans")
            if seconds >= LONG and not calm:
                faults += [f"{name}: never struck" for name in KINDS if not strikes.done[name]]
        time.sleep(5)
        left = processes(folder)
        faults += [f"left behind: {pid} {' '.join(words)}" for pid, words in left.items()]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    told = ", ".join(f"{count} x {name}" for name, count in sorted(strikes.done.items()))
    return faults, (
        f"{sum(strikes.done.values())} faults in {seconds:.0f} s: {told}; {len(clients.acknowledged)} studies "
        f"acknowledged ({clients.unacknowledged} not), {trials} trials, {runs} runs of plans; all ended "
        f"{time.monotonic() - began:.0f} s after the last fault; the honest reader's p95 {reader.p95:.2f} s over "
        f"{len(reader.seconds)} answers, the server's memory at most {reader.most_bytes / 1e6:.0f} MB"
        + (f"; the hostile user was told {dict(user.statuses)}" if hostile else "")
    )


@contextlib.contextmanager
def _stopped(service: Service) -> Iterator[Service]:
    try:
        yield service
    finally:
        service.stop()


def main() -> None:
    """Run it, and print a table row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hostile", action="store_true", help="a user who does harm, beside them")
    parser.add_argument("--calm", action="store_true", help="no faults: what the users alone feel")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if given.database == "sqlite":
            postgres, url = None, f"sqlite:///{folder}/hpo.db"
        else:
            postgres = stack.enter_context(private_postgres())
            url = postgres.url(postgres.new_database())
        faults, told = run(
            url,
            folder,
            seconds=given.seconds,
            seed=given.seed,
            postgres=postgres,
            hostile=given.hostile,
            calm=given.calm,
        )
        print(f"| {given.database} | {len(faults)} | {told} |")
        print(*faults, sep="\n", file=sys.stderr)
        if faults:
            for log in ("workers.log", "serve.log"):
                print(f"--- {log}\n{(folder / log).read_text()[-3000:]}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
