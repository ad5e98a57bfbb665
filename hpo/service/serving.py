"""Runs the application: its socket, login link, worker and orderly shutdown."""

from __future__ import annotations

import gc
import getpass
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from fastapi import APIRouter

from hpo.errors import HpoError
from hpo.runs.repository import open_store
from hpo.service import logs
from hpo.service.app import create_app
from hpo.service.auth import TokenCache, create_token
from hpo.service.config import ServerConfig
from hpo.service.connections import guarded_protocol
from hpo.service.logs import LOG
from hpo.service.refusal import RefusedError
from hpo.service.supervisor import WorkerProcess
from search_spaces.plugins import TAKEN, refused_packages
from storage.errors import without_password
from storage.store import Store
from trainers.private_files import make_private_folder

LINK_LIFETIME = timedelta(days=90)
GRACE_SECONDS = 10


class ServeError(HpoError):
    """Error of a server that cannot listen on its address."""

    exit_code = 2


def serve_until_stopped(
    config: ServerConfig,
    *,
    worker: bool,
    link: bool,
    extra_routers: Sequence[APIRouter] = (),
    tell: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. ``tell`` is called with each line of text for the user.

    With ``link`` the printed address contains a token of the user who starts the server, as Jupyter's does. Raises
    :class:`ServeError` if the port is taken.
    """
    logs.set_up(config.log_format)
    os.environ[TAKEN] = ",".join(config.plugins)  # processes started from now on inherit it
    sock = server_socket(config)
    port = sock.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{config.scheme}://{'127.0.0.1' if config.host in ('0.0.0.0', '::') else host}:{port}{config.path}"
    app = create_app(config, extra_routers)
    # in the environment: any user of the machine can read command lines, and a database URL contains its password
    storage = {"HPO_STORAGE": config.storage}
    child = WorkerProcess(worker_command(config), storage) if worker else None
    try:
        tell(
            f"largebatch serves {without_password(config.storage)} at {address}"
            f"{', with one worker' if worker else ', without a worker: start `hpo worker` where studies should run'}"
        )
        if not (config.is_local or config.tls_certificate or config.trusted_proxies):
            LOG.warning(
                "the server listens on %s without TLS: anyone on the network path can read "
                "tokens; set tls_certificate and tls_key, or put a proxy in front of it and "
                "list that in trusted_proxies",
                config.host,
            )
        if link:
            with open_store(config.storage) as store:
                secret = login_secret(store, config.folder)
            tell(f"\n    {address}/login?token={quote(secret)}\n")
            tell(
                f"The token of this link is stored in {secret_file(config.folder)}; for the "
                f"command line: "
                f"HPO_SERVER={address}, HPO_TOKEN=(the token)."
            )
        else:
            tell("Make a token with `hpo token create --owner NAME --scope submit`.")
        if packages := refused_packages():
            tell(
                f"Studies may not use the plug-ins of {', '.join(packages)}, and the pages of "
                f"studies that do stay empty; to allow them: hpo serve "
                f"{' '.join(f'--plugin {each}' for each in packages)}"
            )
        tell("Ctrl-C stops the server.")
        if child is not None:
            child.start()
        gc.collect()
        gc.freeze()  # imported objects live until the end and need not be scanned in every collection
        _Server(_uvicorn(config, app), app.state.context.live.close).run(sockets=[sock])
    finally:
        if child is not None:
            child.stop()
        sock.close()


def server_socket(config: ServerConfig) -> socket.socket:
    """Return the socket of the server; raise ServeError if it cannot bind to its address."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
    except (OSError, UnicodeError) as error:
        sock.close()
        raise ServeError(
            f"cannot listen on {config.host}:{config.port}: "
            f"{getattr(error, 'strerror', None) or error}; "
            "give another --port (0 takes any free one) or --host"
        ) from error
    return sock


def secret_file(folder: Path) -> Path:
    """Return the file with the token of the login link, readable only by its user."""
    return folder / "login-token"


def login_secret(store: Store, folder: Path) -> str:
    """Return the login link's secret: the old one if still valid, so that open pages stay logged in, else a new one.

    Raises :class:`ServeError` if a new one cannot be written to ``folder``.
    """
    file = secret_file(folder)
    try:
        secret = file.read_text(encoding="utf-8").strip()
        if TokenCache().look_up(store, secret).allows("admin"):
            return secret
    except (OSError, UnicodeError, RefusedError):
        pass
    secret, _ = create_token(
        store,
        owner=user_name(),
        scope="admin",
        name="login link of hpo serve",
        lifetime=LINK_LIFETIME,
    )
    try:
        make_private_folder(folder)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(secret + "\n", encoding="utf-8")
    except OSError as error:
        raise ServeError(
            f"cannot write the token of the login link to {folder}: {error.strerror or error}; give "
            "another folder (--folder)"
        ) from error
    return secret


def user_name() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "admin"


def worker_command(config: ServerConfig) -> list[str]:
    """Return the command of this server's worker, which runs under this process's interpreter."""
    limits = config.limits
    memory = ["--memory", str(limits.study_memory_bytes)] if limits.study_memory_bytes else []
    folders = [part for folder in config.data_folders for part in ("--data-folder", str(folder))]
    variables = [
        part for name in config.program_environment for part in ("--program-environment", name)
    ]
    trackers = [part for name in config.trackers for part in ("--tracker", name)]
    wrapper = ["--program-wrapper", config.program_wrapper] if config.program_wrapper else []
    return [
        sys.executable,
        "-m",
        "hpo.cli.main",
        "worker",
        "--folder",
        str(config.folder),
        "--log-format",
        config.log_format,
        "--disk",
        str(limits.study_disk_bytes),
        *memory,
        *folders,
        *trackers,
        *variables,
        *wrapper,
    ]


def _uvicorn(config: ServerConfig, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guarded_protocol(config.limits, config.trusted_proxies),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies) or None,
    )


class _Server(uvicorn.Server):
    """Ends the event streams on shutdown; otherwise it would wait for their clients to disconnect."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # uvicorn's handler would raise the signal again after shutdown, and end the process before its worker
        self._end_streams()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
