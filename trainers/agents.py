"""Run torchrun for multi-node jobs, with authenticated messages between its agents.

    python -m trainers.agents SECRET_FILE --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:PORT -m trainers ...

torchrun's agents rendezvous through a store on the first node. By default this store listens on every interface, and
the agents unpickle its contents, so anybody who can write to it can run code as the job's user. Here the store listens
only on the interface of the job's network, and each entry carries a code (HMAC-SHA256, RFC 2104) made with the job's
secret, a file in a shared folder that only the user can read. An agent that finds an entry without a valid code exits
without unpickling it. All arguments after the first are options of torchrun; ``--rdzv-backend`` is already set.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousStateError,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main as torchrun

from trainers.distributed.listening import network_address_of, serve_tcp_store
from trainers.lifeline import end_with_launcher

BACKEND = "signed"
DEFAULT_PORT = 29500
CODE_BYTES = hashlib.sha256().digest_size
LEAST_SECRET_BYTES = 32
STORE_SECONDS = 60.0


class SignedBackend(C10dRendezvousBackend):
    """torchrun's rendezvous state, prefixed with a code that authenticates its writer."""

    def __init__(self, store: Any, run_id: str, secret: bytes) -> None:
        self._secret, self._meeting = secret, run_id.encode()
        super().__init__(store, run_id)

    @property
    def name(self) -> str:
        """See the base class."""
        return BACKEND

    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the state and its token; raise RendezvousStateError if no agent of this job wrote the state."""
        return self._checked(super().get_state())

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """See the base class; raise RendezvousStateError if no agent of this job wrote the state in the store."""
        found = super().set_state(self._code(state) + state, token)
        checked = self._checked(None if found is None else (found[0], found[1]))
        return None if checked is None or found is None else (*checked, found[2])

    def _code(self, state: bytes) -> bytes:
        return hmac.digest(self._secret, self._meeting + b"\0" + state, "sha256")

    def _checked(self, found: tuple[bytes, Any] | None) -> tuple[bytes, Any] | None:
        if found is None:
            return None
        code, state = found[0][:CODE_BYTES], found[0][CODE_BYTES:]
        if not hmac.compare_digest(code, self._code(state)):
            raise RendezvousStateError(
                "the store of this job holds a message that none of its agents wrote: another "
                "process can reach its port, or the agents use different secrets"
            )
        return state, found[1]


def read_secret(path: Path) -> bytes:
    """Return the job's secret; raise ValueError if others can read the file or the secret is too short."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} must be readable only by its owner: chmod 600 {path}")
    secret = path.read_bytes().strip()
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(
            f"{path} must hold at least {LEAST_SECRET_BYTES} bytes, but has {len(secret)}"
        )
    return secret


def join(parameters: RendezvousParameters) -> RendezvousHandler:
    """Create the rendezvous of a job's agents, for torchrun."""
    secret = read_secret(Path(str(parameters.get("secret"))))
    host, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=DEFAULT_PORT)
    own = _own_address(host)
    store = _store(host, port, parameters.get_as_bool("is_host"), own)
    parameters.local_addr = parameters.local_addr or own
    handler = create_handler(store, SignedBackend(store, parameters.run_id, secret), parameters)
    # otherwise the workers' store would listen on every interface
    handler._create_tcp_store_server = _serve_workers  # type: ignore[method-assign]
    return handler


def _serve_workers(master_addr: str, master_port: int) -> Any:
    return serve_tcp_store(master_addr, master_port, STORE_SECONDS)


def _store(host: str, port: int, is_host: bool | None, own: str) -> Any:
    """Return the store at ``host``, which the node with that address serves."""
    here = is_host if is_host is not None else network_address_of(host) == own
    if here:
        try:
            return serve_tcp_store(host, port, STORE_SECONDS)
        except OSError as error:  # another agent of this node already serves it
            if is_host:
                raise RendezvousConnectionError(
                    f"cannot listen on {host}:{port}: {error}"
                ) from error
    try:
        return TCPStore(
            network_address_of(host) if here else host,
            port,
            is_master=False,
            timeout=timedelta(seconds=STORE_SECONDS),
        )
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(f"found no store at {host}:{port}: {error}") from error


def _own_address(host: str) -> str:
    """Return the address of this node on the network that leads to ``host``."""
    address = network_address_of(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, DEFAULT_PORT))
        return str(probe.getsockname()[0])


def run_torchrun(arguments: list[str] | None = None) -> None:
    """Run torchrun with authenticated agents."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0].startswith("-"):
        sys.exit(
            "the first argument must be the file with the job's secret; the others are passed "
            "to torchrun"
        )
    try:
        read_secret(Path(given[0]))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    end_with_launcher()
    rendezvous_handler_registry.register(BACKEND, join)
    settings = [f"secret={Path(given[0]).absolute()}"]
    os.environ.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)
    torchrun([f"--rdzv-backend={BACKEND}", *_with(settings, given[1:])])


def _with(settings: list[str], arguments: list[str]) -> list[str]:
    """Add rendezvous settings to the arguments: torchrun accepts ``--rdzv-conf`` only once."""
    given = [each for each in arguments if each.startswith("--rdzv-conf=")]
    others = [each for each in arguments if not each.startswith("--rdzv-conf=")]
    values = [*(each.partition("=")[2] for each in given), *settings]
    return [f"--rdzv-conf={','.join(values)}", *others]


if __name__ == "__main__":
    run_torchrun()
