"""Worker processes that can be killed, studies for them, and a witness that detects lost results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hpo.study.spec import parse_study
from storage.records import NewStudy, Study, StudyState, Trial
from storage.store import Store

ROOT = Path(__file__).parent.parent
STUDY = """\
name: {name}
workload: paced_workload:{kind}
data: {{modes: 20, noise_scale: 0.5, train_samples: 512, seconds: {seconds}, run_seconds: {run_seconds}, log: {log}}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32]
search:
  learning_rate: {{log_uniform: [0.02, 1], role: scaled}}
  momentum: 0.9
  weight_decay: 0
budget: {{trials: {trials}, epochs_per_trial: {epochs}, evaluations_per_epoch: 1}}
sampler: random
{more}"""


@dataclass(frozen=True)
class Paced:
    """A study of ``trials`` trainings whose every epoch takes ``seconds``; ``more`` is added to its file."""

    name: str
    trials: int = 12
    epochs: int = 10
    seconds: float = 0.02
    kind: str = "Paced"
    more: str = ""

    def submit(self, store: Store, folder: Path, **options: object) -> Study:
        """Submit it; its workload is copied into ``folder``, where the workers run."""
        (folder / "paced_workload.py").write_text(
            (Path(__file__).parent / "paced_workload.py").read_text()
        )
        text = STUDY.format(
            name=self.name,
            kind=self.kind,
            seconds=self.seconds,
            run_seconds=self.seconds,
            log=log_of(self.name, folder),
            trials=self.trials,
            epochs=self.epochs,
            more=self.more,
        )
        spec = parse_study(text)
        return store.submit_study(
            NewStudy(
                name=spec.name,
                workload=spec.workload,
                metric=spec.target.metric,
                threshold=spec.target.threshold,
                higher_is_better=spec.target.higher_is_better,
                spec=text,
                **options,
            )
        ).study  # type: ignore[arg-type]


def log_of(name: str, folder: Path) -> Path:
    """Return the file in which the trainings of a study record their start."""
    return folder / f"{name.replace(' ', '-')}.jsonl"


def begun(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the recorded starts of trainings."""
    log = log_of(name, folder)
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class Fleet:
    """Workers of one storage, as processes; all of them are gone when the context ends."""

    def __init__(self, url: str, folder: Path, arguments: Sequence[str] = ()) -> None:
        self.url, self.folder, self._arguments = url, folder, arguments
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = folder / "workers.log"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        command = [
            sys.executable,
            "-m",
            "hpo.cli.main",
            "worker",
            "--storage",
            self.url,
            "--folder",
            str(self.folder / ".hpo"),
            "--lease-seconds",
            "1",
            "--poll-seconds",
            "0.1",
            *self._arguments,
            *arguments,
        ]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stderr=log,
                stdout=log,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            )
        self.processes.append(process)
        return process

    def said(self) -> str:
        """Return the output of the workers."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self) -> None:
        """Kill the remaining workers."""
        for process in self.processes:
            if process.poll() is None:
                kill(process)


@contextmanager
def fleet(url: str, folder: Path, *arguments: str) -> Iterator[Fleet]:
    """Provide a fleet that is always ended."""
    workers = Fleet(url, folder, arguments)
    try:
        yield workers
    finally:
        workers.end()


def kill(process: subprocess.Popen[bytes]) -> None:
    """``kill -9`` only the worker; processes of Ray notice by themselves."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until ``condition`` holds; TimeoutError otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)


def runs(store: Store, worker: subprocess.Popen[bytes]) -> bool:
    """Whether a worker, of the default name, holds a study."""
    return any(
        study.state is StudyState.RUNNING and (study.lease_worker or "").endswith(f":{worker.pid}")
        for study in store.studies()
    )


def all_ended(store: Store) -> bool:
    """Whether no study waits or runs."""
    return all(
        study.state not in (StudyState.QUEUED, StudyState.RUNNING) for study in store.studies()
    )


class Witness:
    """Records every finished trial that it sees, with its curve, and later checks it."""

    def __init__(self, store: Store, besides: str | None = None) -> None:
        self._store, self._besides = store, besides  # an owner whose studies are ignored
        self._seen: dict[int, tuple[Trial, int]] = {}

    def look(self) -> int:
        """Record the finished trials; return their number."""
        for study in self._studies():
            for trial in self._store.trials(study.id):
                if trial.state.finished and trial.id not in self._seen:
                    self._seen[trial.id] = (trial, len(self._store.points(trial.id)))
        return len(self._seen)

    def faults(self, folder: Path) -> list[str]:
        """Return every broken rule: trials lost, changed, run again after their end, without an end or duplicated.

        ``folder`` is where the workers ran.
        """
        found = []
        for study in self._studies():
            trials = self._store.trials(study.id)
            found += (
                [f"{study.name}: {study.state}, {study.message}"]
                if study.state is not StudyState.FINISHED
                else []
            )
            wanted = parse_study(study.spec).budget.trials
            found += (
                [f"{study.name} has {len(trials)} trials, not {wanted}"]
                if len(trials) != wanted
                else []
            )
            found += [
                f"{study.name}, trial {trial.number}: {trial.state} {trial.reason}"
                for trial in trials
                if not trial.state.finished or trial.state == "failed"
            ]
            now = {trial.id: trial for trial in trials}
            for trial, points in self._seen.values():
                if trial.study_id == study.id and (
                    now.get(trial.id) != trial or len(self._store.points(trial.id)) != points
                ):
                    found.append(f"{study.name}, trial {trial.number}: finished and then changed")
            found += _twice(study, trials)
            found += _begun_after_its_end(study, trials, folder)
        return found

    def _studies(self) -> list[Study]:
        return [study for study in self._store.studies() if study.owner != self._besides]


def _twice(study: Study, trials: Sequence[Trial]) -> list[str]:
    counts = Counter(
        (trial.global_batch_size, trial.seed, trial.settings["learning_rate"]) for trial in trials
    )
    return [
        f"{study.name}: {each} was trained {count} times"
        for each, count in counts.items()
        if count > 1
    ]


def _begun_after_its_end(study: Study, trials: Sequence[Trial], folder: Path) -> list[str]:
    times: dict[tuple[int, int, float], list[float]] = {}
    for each in begun(study.name, folder):
        times.setdefault(
            (each["global_batch_size"], each["seed"], each["learning_rate"]), []
        ).append(each["at"])
    found = []
    for trial in trials:
        began = times.get(
            (trial.global_batch_size, trial.seed, trial.settings["learning_rate"]), []
        )
        ended = (
            trial.finished_at.timestamp()
            if isinstance(trial.finished_at, datetime)
            else float("inf")
        )
        if not began:
            found.append(f"{study.name}, trial {trial.number}: has an end, but never began")
        elif max(began) > ended + 0.001:
            found.append(f"{study.name}, trial {trial.number}: began again after its end")
    return found
