"""Waiting until Ray has noticed a machine that is gone.

Ray's head counts a machine as lost when it has missed some health checks, after some twenty seconds. A trial that is
restarted before that may be placed on the same machine again, and fails there at once: the restarts of a trial would be
used up by one loss.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

NOTICE_SECONDS = 60.0
"""How long Ray is given to notice, unless told otherwise."""
ANSWER_SECONDS = 2.0
"""How long a machine may take to accept a connection."""
LOOK_SECONDS = 0.2


def wait_for_notice(
    seconds: float = NOTICE_SECONDS,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when every machine that Ray counts as alive accepts connections, or after ``seconds``."""
    import ray

    end = clock() + seconds
    while not all(_answers(node) for node in ray.nodes() if node["Alive"]) and clock() < end:
        sleep(LOOK_SECONDS)


def _answers(node: Mapping[str, Any]) -> bool:
    """Whether the process of Ray that starts others on the machine, the raylet, accepts a connection."""
    try:
        address = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(address, timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
