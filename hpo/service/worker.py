"""A worker: takes studies from the queue of a database and runs them, one after the other.

Any number of workers share a queue, on any machine that reaches the database. A worker holds its study under a lease
that a thread renews. If it dies, the lease expires and another worker takes over the study from the database: finished
trials are kept, and running trials restart, from their checkpoints if the workers share a folder. A worker that only
lost its lease (the machine slept, the clock jumped) learns this when the database refuses its next write, and gives up
the study without harm.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hpo.errors import HpoError
from hpo.runs.exports.beside import trackers_beside
from hpo.runs.lease import LEASE_SECONDS, HeldLease, lease_holder_name
from hpo.runs.progress import Progress
from hpo.runs.repository import open_store, stored_spec
from hpo.runs.run import RunOptions, run_held_study
from hpo.runs.study_limits import StudyLimits
from hpo.service.submission import faults_of_submitted_data
from hpo.study.jobs import workload_data
from hpo.study.restart_limits import STUDY_STARTS
from hpo.study.spec import StudySpec
from hpo.study.trackers import trackers_allowed_here
from hpo.tuning.periodic import PeriodicThread
from hpo.tuning.retry import RETRY_SECONDS
from hpo.tuning.tuner import RayOptions, prepare_folder, stop_ray
from storage.errors import LeaseLost, StoreError
from storage.records import Lease, StudyState, Trial, WorkerBeat
from storage.store import Store
from trainers.errors import TrainerError

LOG = logging.getLogger("hpo.service.worker")

BEAT_SECONDS = 5.0
"""Seconds between two heartbeats in the table of workers."""

LOG_SECONDS = 10.0
"""Seconds between two log lines that count trials."""

TRACKER_GRACE_SECONDS = 5.0
"""Seconds for which a tracker may keep writing after its study has ended; the next study waits for it."""

EMPTY_LOOKS = 3
"""A draining worker ends after finding no study this many times, as other workers may have locked a row briefly."""

LONGEST_DRAIN_PAUSE = 0.25
"""Maximum number of seconds between two attempts of a draining worker to find a study."""


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker.

    ``name`` is unique to the process; ``host:pid`` if empty. ``cores`` is the number of cores of this machine that
    Ray uses, all if None; ``ray_address`` is a cluster to use instead. ``per_owner`` is the maximum number of one
    user's studies that run at a time, over all workers with this option. A study whose workers died
    ``max_attempts`` times fails. ``once`` stops the worker after one study, ``drain`` when the queue is empty. If
    ``data_folders`` are given, a study with data elsewhere fails: links may have changed since the server checked
    them. A study may use ``memory_bytes`` of memory, 90 % of the machine's if None, and ``disk_bytes`` of disk
    space in the folder, 100 GB if None. ``trackers`` lists the trackers that studies may name; others are mentioned
    in the study's events, and nothing is written to them.
    """

    storage: str
    folder: Path
    name: str = ""
    ray_address: str | None = None
    cores: int | None = None
    per_owner: int | None = None
    lease_seconds: float = LEASE_SECONDS
    poll_seconds: float = 1.0
    storage_retry_seconds: float = RETRY_SECONDS
    max_attempts: int = STUDY_STARTS
    once: bool = False
    drain: bool = False
    data_folders: tuple[Path, ...] = ()
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    trackers: tuple[str, ...] = ()


class StudyWorker:
    """Runs studies until :meth:`stop` is called, or as ``once`` and ``drain`` say; call :meth:`run` only once."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options, self.name = options, options.name or lease_holder_name()
        self._limits = StudyLimits.of(options.memory_bytes, options.disk_bytes)
        self._stopping = threading.Event()
        self._empty = 0

    def stop(self) -> None:
        """Stop, and put the current study back into the queue. Returns at once; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> int:
        """Run studies; return how many were taken.

        Raises StorageUnavailableError if there is no database. Raises TuningError if nothing can be written to the
        folder, because every study in the queue would fail there.
        """
        taken, options = 0, self._options
        prepare_folder(options.folder)
        with (
            open_store(options.storage) as store,
            _Presence(store, self.name, options.cores) as presence,
        ):
            LOG.info("worker %s: waiting for studies in %s", self.name, store.url)
            try:
                while not self._stopping.is_set() and self._empty < EMPTY_LOOKS:
                    lease = self._claim(store)
                    if lease is None:
                        pause = min(
                            options.poll_seconds, LONGEST_DRAIN_PAUSE if options.drain else math.inf
                        )
                        self._stopping.wait(pause * random.uniform(0.75, 1.25))
                        continue
                    taken += 1
                    presence.works_on(lease.study.id)
                    self._work(store, lease)
                    presence.works_on(None)
                    if options.once:
                        break
            finally:
                stop_ray()
        LOG.info("worker %s: stopping after %d studies", self.name, taken)
        return taken

    def _claim(self, store: Store) -> Lease | None:
        try:
            lease = store.claim_study(
                self.name,
                lease_seconds=self._options.lease_seconds,
                per_owner=self._options.per_owner,
            )
        except StoreError as error:
            LOG.warning("cannot take a study, trying again: %s", error)
            return None
        self._empty = self._empty + 1 if lease is None and self._options.drain else 0
        return lease

    def _work(self, store: Store, lease: Lease) -> None:
        """Run one study; the worker continues after any outcome."""
        name = lease.study.name
        with HeldLease(
            store,
            lease,
            lease_seconds=self._options.lease_seconds,
            on_warning=lambda text: LOG.warning("%s: %s", name, text),
        ) as held:
            how = (
                "took it over from a worker that stopped responding"
                if lease.taken_over
                else "took it from the queue"
            )
            LOG.info("%s: %s %s", name, self.name, how)
            held.event(
                "taken_over" if lease.taken_over else "claimed",
                f"{self.name} {how}",
                attempt=lease.study.attempts,
            )
            try:
                state, message = self._run(held)
            except LeaseLost as error:
                LOG.warning("%s: %s", name, error)
                held.event("lease_lost", str(error))
                return
            except StoreError as error:
                LOG.error("%s: left unchanged: %s", name, error)
                return
            LOG.info("%s: %s%s", name, state, f": {message}" if message else "")

    def _run(self, held: HeldLease) -> tuple[StudyState, str]:
        """Return the state in which the study was left, and a message about it."""
        options, study = self._options, held.study
        if study.attempts > options.max_attempts:
            return self._fail(
                held,
                f"it was started {options.max_attempts} times, but no worker finished it: it "
                f"may kill its workers, for example by using up their memory",
            )
        try:
            spec = stored_spec(study)
        except HpoError as error:
            return self._fail(held, str(error))
        data = workload_data(spec) if spec.search_path else spec.data  # the path to open
        faults = (
            list(faults_of_submitted_data(data, options.data_folders))
            if options.data_folders
            else []
        )
        if faults:
            return self._fail(held, "; ".join(message for _, message in faults))
        progress = _Log(study.name)
        chosen, refused = trackers_allowed_here(spec.trackers, options.trackers)
        for why in refused:
            held.event("tracker", why)
        try:
            with trackers_beside(
                chosen,
                study,
                options.storage,
                options.folder / "trackers",
                progress.message,
                TRACKER_GRACE_SECONDS,
            ):
                end = run_held_study(
                    spec,
                    held,
                    options.storage,
                    RunOptions(
                        folder=options.folder,
                        storage_retry_seconds=options.storage_retry_seconds,
                        check=True,
                        ray=RayOptions(options.ray_address, options.cores, keep=True),
                        stop=self._stopping.is_set,
                        stopped_state=StudyState.QUEUED,
                        stopped_message=f"{self.name} was stopped; another worker will continue",
                        progress=progress,
                        limits=self._limits,
                    ),
                )
        except (HpoError, TrainerError) as error:
            LOG.debug("%s failed", study.name, exc_info=True)
            return StudyState.FAILED, str(error)
        return end.study.state, end.study.message

    def _fail(self, held: HeldLease, message: str) -> tuple[StudyState, str]:
        held.release(StudyState.FAILED, message)
        held.event("failed", message)
        return StudyState.FAILED, message


class _Log(Progress):
    """Writes the messages of a run to the worker's log and, every few seconds, the number of trials that have ended."""

    def __init__(self, study: str) -> None:
        self._study, self._counted_at = study, time.monotonic()

    def message(self, text: str) -> None:
        """Log one line."""
        LOG.info("%s: %s", self._study, text)

    def sweep(
        self,
        spec: StudySpec,
        trials: Sequence[Trial],
        running: Mapping[int, Mapping[str, Any]],  # noqa: ARG002
    ) -> None:
        """Log a line every few seconds."""
        if time.monotonic() - self._counted_at >= LOG_SECONDS:
            self._counted_at = time.monotonic()
            ended = sum(trial.state.finished for trial in trials)
            self.message(f"{spec.budget.counted(ended)} have ended")


class _Presence(PeriodicThread):
    """Keeps the worker's row in the table of workers up to date, from a separate thread."""

    def __init__(self, store: Store, name: str, cores: int | None) -> None:
        super().__init__("sign of life", BEAT_SECONDS, at_once=True)
        self._store = store
        self._beating = WorkerBeat(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("largebatch"),
            cores=cores or os.cpu_count() or 1,
            accelerators=_accelerators(),
        )

    def works_on(self, study_id: int | None) -> None:
        """Set the study that the worker runs; shown with the next heartbeat."""
        self._beating = dataclasses.replace(self._beating, study_id=study_id)

    def tick(self) -> None:
        """Send one heartbeat."""
        try:
            self._store.beat(self._beating)
        except StoreError as error:
            LOG.debug("heartbeat failed: %s", error)


def _accelerators() -> int:
    """Count the accelerators that a process may use here, without loading a library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip() not in ("", "-1")])
    return len(
        [
            path
            for path in Path("/dev").glob("nvidia*")
            if path.name.removeprefix("nvidia").isdigit()
        ]
    )
