"""A separate server for each test, on a real socket of this machine."""

from __future__ import annotations

import atexit
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import httpx
import uvicorn
from fastapi import FastAPI

from hpo.service import checking, fit_process
from hpo.service.app import create_app
from hpo.service.auth import create_token, digest_of, new_secret
from hpo.service.config import ServerConfig
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewToken, NewTrial, TrialResult, TrialState
from storage.store import Store

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


def spec_of(name: str = "bowl", **more: Any) -> str:
    """A study file; ``more`` replaces or adds top-level keys."""
    text = SPEC.format(name=json.dumps(name))
    lines = [line for line in text.splitlines() if line.split(":")[0] not in more]
    return (
        "\n".join([*lines, *(f"{key}: {json.dumps(value)}" for key, value in more.items())]) + "\n"
    )


@dataclass
class Api:
    """A client of one server, with tokens of several users."""

    app: FastAPI
    client: httpx.Client
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.app.state.context.open_store()

    def token(self, owner: str, scope: str = "submit") -> str:
        """A secret of the owner; always the same for the same scope."""
        key = f"{owner}/{scope}"
        if key not in self.secrets:
            self.secrets[key] = create_token(self.store, owner=owner, scope=scope)[0]
        return self.secrets[key]

    def ended_token(self, *, revoked: bool) -> str:
        """A secret that is no longer valid."""
        secret = new_secret()
        token = self.store.add_token(
            NewToken(
                name="",
                owner="ada",
                digest=digest_of(secret),
                scopes=frozenset({"admin"}),
                expires_at=None if revoked else datetime.now(UTC) - timedelta(seconds=1),
            )
        )
        if revoked:
            self.store.revoke_token(token.id)
        return secret

    def call(
        self, method: str, path: str, *, owner: str = "ada", scope: str = "submit", **more: Any
    ) -> Any:
        """One request to the API, by default of Ada, who may submit."""
        headers = {"Authorization": f"Bearer {self.token(owner, scope)}", **more.pop("headers", {})}
        return self.client.request(method, f"/api/v1{path}", headers=headers, **more)

    def submit(
        self,
        name: str = "bowl",
        *,
        spec: str | None = None,
        owner: str = "ada",
        scope: str = "submit",
        key: str | None = None,
        **more: Any,
    ) -> Any:
        """Submit a study."""
        return self.call(
            "POST",
            "/studies",
            json={"spec": spec or spec_of(name), **more},
            owner=owner,
            scope=scope,
            headers={"Idempotency-Key": key} if key else {},
        )


class KeptCheck(checking._Process):
    """A process that checks submissions, reused by later servers, as starting one takes longer than most tests."""

    def __init__(self, config: ServerConfig, idle: list[KeptCheck]) -> None:
        self._idle, self._asking = idle, True
        super().__init__(config)
        self._asking = False

    def ask(self, question: Any, seconds: float) -> dict[str, Any]:
        self._asking = True  # one that fails at it is ended
        answer = super().ask(question, seconds)
        self._asking = False
        return answer

    def end(self) -> None:
        if self.alive and not self._asking:
            self._idle.append(self)
        else:
            super().end()


_IDLE: dict[str, list[KeptCheck]] = {}


def kept_check(config: ServerConfig) -> KeptCheck:
    """Return an idle check process, or a new one; a check depends on neither the database nor the folder."""
    idle = _IDLE.setdefault(config.model_dump_json(exclude={"storage", "folder"}), [])
    with contextlib.suppress(IndexError):
        while True:
            kept = idle.pop()
            if kept.alive:
                return kept
            kept.end()
    return KeptCheck(config, idle)


@atexit.register
def _end_checks() -> None:
    for kept in (each for idle in _IDLE.values() for each in idle):
        checking._Process.end(kept)
    fit_process.close()


@contextlib.contextmanager
def served(folder: Path, **values: Any) -> Iterator[Api]:
    """A server on an SQLite database in the folder; its processes of checks and fits stay for the next one."""
    with (
        mock.patch.object(checking, "_Process", kept_check),
        mock.patch.object(fit_process, "close"),
    ):
        yield from _served(folder, **values)


def _served(folder: Path, **values: Any) -> Iterator[Api]:
    app = create_app(
        ServerConfig.model_validate(
            {"storage": f"sqlite:///{folder}/hpo.db", "folder": folder / ".hpo", **values}
        )
    )
    with listening(app) as address, httpx.Client(base_url=address, timeout=240) as client:
        yield Api(app, client)


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The application on a socket of this machine; yields its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not start")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        app.state.context.live.close()
        server.should_exit = True
        thread.join(10)


def path_of(name: str) -> str:
    """The address of a study."""
    return f"/studies/{quote(name, safe='')}"


def add_trials(
    store: Store, name: str, count: int, *, points: int = 3, batch: int = 16
) -> list[int]:
    """Trials that reached their target after 2, 2.1, 2.2 ... epochs; returns their ids."""
    study = store.study(name)
    settings = [
        TrainingSettings(
            learning_rate=0.01 * (1 + number % 50), normalization_batch_size=1
        ).to_dict()
        for number in range(count)
    ]
    seed = len(store.trials(study.id))  # no training is there twice
    new = [NewTrial(global_batch_size=batch, seed=seed, settings=each) for each in settings]
    trials = store.add_trials(study.id, new)
    store.start_trials([trial.id for trial in trials])
    for number, trial in enumerate(trials):
        epochs = 2 + 0.1 * number
        store.finish_trial(
            trial.id,
            TrialResult(
                state=TrialState.REACHED,
                epochs_to_target=epochs,
                epochs=epochs,
                steps=100,
                seconds=1.0,
                best_metric=0.09,
                final_metric=0.09,
                resolution_epochs=0.25,
            ),
            points_of(points),
        )
    return [trial.id for trial in trials]


def points_of(count: int) -> list[ConvergencePoint]:
    """Points whose first metric was not measured."""
    return [
        ConvergencePoint(
            step=10 * i,
            samples=160 * i,
            epochs=0.5 * i,
            seconds=0.1 * i,
            train_loss=1 / i,
            loss=1 / i,
            metric=float("nan") if i == 1 else 1 / i,
            learning_rate=0.1,
            global_batch_size=16,
        )
        for i in range(1, count + 1)
    ]


def fail_trials(store: Store, name: str, count: int) -> None:
    """Trials that failed."""
    study = store.study(name)
    settings = TrainingSettings(normalization_batch_size=1).to_dict()
    new = [
        NewTrial(global_batch_size=16, seed=seed, settings=settings)
        for seed in range(1000, 1000 + count)
    ]
    for trial in store.add_trials(study.id, new):
        store.finish_trial(
            trial.id, TrialResult(state=TrialState.FAILED, reason="no such file"), points_of(1)
        )
