"""Stores of torch.distributed that listen on one network interface: ``TCPStore`` by itself listens on all.

A store takes what anybody who reaches it writes. So it listens where the job's own workers come from and nowhere
else: on the loopback interface for workers of one machine, on the job's network for those of several.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ELSEWHERE = (
    "192.0.2.1",
    9,
)  # RFC 5737: an address that nobody has, to ask which interface leads out
BACKLOG = 4096
_served: dict[tuple[str, int], TCPStore] = {}


def serve_store(host: str, port: int, timeout_seconds: float) -> TCPStore:
    """A store at ``port`` (0 takes any free one) of the interface that has the address of ``host``, a name of this
    machine; OSError where that is none or the port is taken.
    """
    address = address_of(host)
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


def address_of(host: str) -> str:
    """The address of ``host`` on the network, as a number.

    A name of this machine that stands for the loopback interface, as Debian's ``127.0.1.1`` does, is of no use to
    others: then the address of the interface that leads out of the machine is given, where there is one. ``localhost``
    and the addresses 127.0.0.0/8 themselves are taken at their word.
    """
    found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    if not found.startswith("127.") or host == "localhost" or host.startswith("127."):
        return found
    return outward_address() or found


def outward_address() -> str | None:
    """The address of the interface that leads out of this machine; None where there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return None
