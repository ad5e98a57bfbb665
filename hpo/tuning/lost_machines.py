"""Waits until Ray has noticed a lost machine.

Ray's head node counts a machine as lost after several missed health checks, about twenty seconds later. A trial that is
restarted before that may be placed on the same machine again and fail at once, so one lost machine would use up all of
the trial's restarts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

NOTICE_SECONDS = 60.0
"""Default time that Ray gets to notice a lost machine, in seconds."""
ANSWER_SECONDS = 2.0
"""How long a machine may take to accept a connection, in seconds."""
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
    """Return whether the raylet, the Ray process that starts others on the machine, accepts a connection."""
    try:
        address = node["NodeManagerAddress"], node["NodeManagerPort"]
        socket.create_connection(address, timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
