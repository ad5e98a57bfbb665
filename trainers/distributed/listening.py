"""Open torch.distributed stores that listen on only one network interface; by default ``TCPStore`` listens on all.

A store accepts writes from anybody who can reach it. It therefore listens only where the job's own workers connect: on
the loopback interface for workers on one machine, and on the job's network for several machines.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ELSEWHERE = (
    "192.0.2.1",
    9,
)  # RFC 5737: an unassigned address, used to find the outward interface
BACKLOG = 4096
_served: dict[tuple[str, int], TCPStore] = {}


def serve_tcp_store(host: str, port: int, timeout_seconds: float) -> TCPStore:
    """Open a store at ``port`` (0: any free port) on the interface with the address of ``host``.

    Raises OSError if ``host`` is not a name of this machine, or if the port is taken.
    """
    address = network_address_of(host)
    if (address, port) in _served:
        return _served[address, port]
    listening = socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(BACKLOG)
        store = TCPStore(
            address,
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
            multi_tenant=False,
            master_listen_fd=listening.detach(),
        )
    finally:
        listening.close()
    if port:  # a process may leave its group and join it again, at the same port
        _served[address, port] = store
    return store


def network_address_of(host: str) -> str:
    """Return the numeric network address of ``host``.

    Other machines cannot use a name of this machine that resolves to the loopback interface, as with Debian's
    ``127.0.1.1``. In that case, return the address of the interface used for outgoing traffic, if there is one.
    ``localhost`` and the addresses 127.0.0.0/8 themselves are taken literally.
    """
    found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    if not found.startswith("127.") or host == "localhost" or host.startswith("127."):
        return found
    return outward_address() or found


def outward_address() -> str | None:
    """Return the address of the interface used for outgoing traffic, or None, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return None
