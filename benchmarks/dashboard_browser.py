"""A real `hpo serve` and a real browser, for tests, benchmarks and screenshots of the dashboard.

The browser is the system's Chromium (``CHROMIUM`` names another), driven by Playwright; none is downloaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx

START_SECONDS = 180
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-precise-memory-info",
)


class NoBrowserError(RuntimeError):
    """Chromium or Playwright is missing."""


def chromium() -> str:
    """Return the path of the browser; NoBrowserError says what to install."""
    found = shutil.which(os.environ.get("CHROMIUM", "chromium")) or shutil.which("chromium-browser")
    if found is None:
        raise NoBrowserError(
            "Chromium is not installed: `apt-get install chromium`, or CHROMIUM=path"
        )
    return found


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start a headless Chromium; NoBrowserError if it or Playwright is missing."""
    path = chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoBrowserError("Playwright is not installed: pip install playwright") from error
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield running
        finally:
            running.close()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass
class Server:
    """One `hpo serve` on an SQLite database in ``folder``; it keeps its port across restarts."""

    folder: Path
    worker: bool = True
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its URL, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> str:
        """The URL of its database."""
        return f"sqlite:///{self.folder}/hpo.db"

    @property
    def log(self) -> str:
        """Its log output."""
        return (self.folder / "serve.log").read_text("utf-8", "replace")

    @property
    def secret(self) -> str:
        """The token of its login link."""
        return (self.folder / ".hpo" / "login-token").read_text("utf-8").strip()

    @property
    def link(self) -> str:
        """The link that logs in."""
        return f"{self.address}/login?token={quote(self.secret)}"

    def client(self) -> httpx.Client:
        """Return a client of its API, with the token of the link."""
        return httpx.Client(
            base_url=self.address, headers={"Authorization": f"Bearer {self.secret}"}, timeout=60
        )

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [
            sys.executable,
            "-m",
            "hpo.cli.main",
            "serve",
            "--port",
            str(self.port),
            "--storage",
            self.storage,
            "--worker" if self.worker else "--no-worker",
        ]
        with (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self.log}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.address}/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def submit(self, spec: str) -> dict[str, Any]:
        """Submit a study file."""
        with self.client() as client:
            answer = client.post("/api/v1/studies", json={"spec": spec})
            answer.raise_for_status()
            return cast("dict[str, Any]", answer.json())

    def study(self, name: str) -> dict[str, Any]:
        """A study as the API shows it."""
        with self.client() as client:
            return cast(
                "dict[str, Any]", client.get(f"/api/v1/studies/{quote(name, safe='')}").json()
            )

    def wait(self, name: str, *states: str, seconds: float = 300) -> dict[str, Any]:
        """Wait until a study is in one of the states."""
        deadline = time.monotonic() + seconds
        while (found := self.study(name))["state"] not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"study {name!r} is still {found['state']}")
            time.sleep(0.3)
        return found


@contextlib.contextmanager
def serving(folder: Path, *, worker: bool = True) -> Iterator[Server]:
    """Start a server and wait until it is ready; it stops at the end of the block."""
    server = Server(folder, worker)
    server.start()
    try:
        yield server
    finally:
        server.stop()
