"""A hostile user who does all the harm that a token allows: extreme figures, unread responses, bad programs.

``benchmarks/service_faults.py --hostile`` and its honest reader measure the effect on the other users.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from storage.figures import LEAST, MOST, MOST_SAMPLES, MOST_WHOLE

EDGES = (
    0,
    -1,
    LEAST / 2,
    MOST,
    MOST + 1,
    MOST_SAMPLES,
    MOST_SAMPLES + 1,
    MOST_WHOLE,
    2**63 - 1,
    1e308,
)
UNREAD = 40
"""Number of connections that never read their responses."""

FOR_AGENTS = """\
name: {name}
workload: noisy_quadratic
target: {{metric: loss, at_most: 0.1}}
ladder: [16]
search: {{learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}, normalization_batch_size: 1}}
budget: {{trials: 2, epochs_per_trial: 20}}
"""
PROGRAM = """\
name: {name}
workload: program
program:
  command: [sh, "{script}", "{{learning_rate}}", "{{global_batch_size}}", "{{seed}}"]
  train_samples: 4096
  report: {{metrics: {{top1: true}}, pattern: '(?P<epochs>\\d+)?(?P<top1>(a+)+)$'}}
target: {{metric: top1, at_least: 0.9}}
ladder: [16]
search: {{learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}, normalization_batch_size: 1}}
budget: {{trials: 2, epochs_per_trial: 2}}
"""
SCRIPTS = {
    "matches.sh": "head -c 60 /dev/zero | tr '\\0' a; echo b; sleep 1\n",
    "prints.sh": "env; head -c 50000000 /dev/zero; exit 1\n",
    "leaves.sh": "setsid sleep 1000 & exit 1\n",
}


def write_scripts(folder: Path) -> list[Path]:
    """Write the scripts that the programs run."""
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    return [folder / name for name in SCRIPTS]


class HostileUser:
    """A thread per kind of harm, until the end of the context."""

    def __init__(self, address: str, token: str, scripts: Sequence[Path]) -> None:
        self.statuses: Counter[str] = Counter()
        self._address, self._token = address, token
        self._ended = threading.Event()
        self._scripts = scripts
        kinds = (self._tell_figures, self._take_nothing, self._run_programs)
        self._threads = [threading.Thread(target=self._again, args=(kind,)) for kind in kinds]

    def __enter__(self) -> HostileUser:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _again(self, kind: Any) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with httpx.Client(
            base_url=f"{self._address}/api/v1", headers=headers, timeout=30
        ) as client:
            for number in itertools.count():
                if self._ended.wait(0.2):
                    return
                with contextlib.suppress(httpx.HTTPError, OSError, ValueError, KeyError):
                    kind(client, number)

    def _ask(
        self, client: httpx.Client, method: str, path: str, body: object = None
    ) -> httpx.Response:
        answer = client.request(method, path, json=body)
        self.statuses[str(answer.status_code)] += 1
        return answer

    def _tell_figures(self, client: httpx.Client, number: int) -> None:
        """Report impossible figures for trials of a study for agents, which is deleted from time to time."""
        draw, name, key = random.Random(number), f"figures {number}", f"{number:016d}"
        body = {"spec": FOR_AGENTS.format(name=name), "for_agents": True}
        self._ask(client, "POST", "/studies", body)
        trials = f"/studies/{name}/trials"
        told = self._ask(client, "POST", trials, {"key": key}).json()["trial"]["number"]
        figures = (
            "step",
            "samples",
            "epochs",
            "seconds",
            "learning_rate",
            "train_loss",
            "loss",
            "metric",
        )
        point = {each: draw.choice((1, 0.5, *EDGES)) for each in figures}
        points = [
            {**point, "step": step, "global_batch_size": 16} for step in (4, draw.choice(EDGES))
        ]
        self._ask(client, "POST", f"{trials}/{told}/points", {"key": key, "points": points})
        outcome = {
            each: draw.choice(EDGES) for each in ("epochs_to_target", "epochs", "steps", "seconds")
        }
        ended = {"key": key, "outcome": {"state": "reached", **outcome}}
        self._ask(client, "POST", f"{trials}/{told}/end", ended)
        self._ask(client, "POST", f"/studies/{name}/cancel")
        if number % 3:
            self._ask(client, "DELETE", f"/studies/{name}")

    def _take_nothing(self, client: httpx.Client, number: int) -> None:  # noqa: ARG002
        """Open connections that pipeline many requests and read nothing."""
        place = urlsplit(self._address)
        request = (
            f"GET /api/v1/studies?limit=1000 HTTP/1.1\r\nHost: {place.hostname}\r\n"
            f"Authorization: Bearer {self._token}\r\n\r\n"
        ).encode()
        with contextlib.ExitStack() as stack:
            for _ in range(UNREAD):
                connection = stack.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(2)
                connection.connect((place.hostname or "", place.port or 0))
                with contextlib.suppress(OSError):
                    connection.sendall(request * 200)
            self._ended.wait(10)

    def _run_programs(self, client: httpx.Client, number: int) -> None:
        """Run programs that match regular expressions forever, print forever, and leave processes behind."""
        text = PROGRAM.format(name=f"program {number}", script=self._scripts[number % 3])
        self._ask(client, "POST", "/studies", {"spec": text})
        self._ended.wait(20)


class HonestReader:
    """Reads a page and the server's memory twice a second; ignores times when the server is down."""

    def __init__(self, address: str, token: str, pid: Any) -> None:
        self.seconds: list[float] = []
        self.most_bytes = 0
        self.wrong: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(address, token, pid))

    def __enter__(self) -> HonestReader:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def p95(self) -> float:
        """The 95th percentile of the response times in seconds; NaN without responses."""
        ranked = sorted(self.seconds)
        return ranked[int(0.95 * len(ranked))] if ranked else float("nan")

    def _read(self, address: str, token: str, pid: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        while not self._ended.wait(0.5):
            with contextlib.suppress(OSError, httpx.HTTPError):
                self.most_bytes = max(self.most_bytes, resident_bytes(pid()))
                began = time.perf_counter()
                answer = httpx.get(f"{address}/api/v1/studies", headers=headers, timeout=30)
                self.seconds.append(time.perf_counter() - began)
                if answer.status_code == 500:
                    self.wrong[answer.text[:200]] += 1


def resident_bytes(pid: int | None) -> int:
    """Return the memory of a process; 0 if there is none."""
    if pid is None:
        return 0
    with Path(f"/proc/{pid}/statm").open() as file:
        return int(file.read().split()[1]) * 4096
