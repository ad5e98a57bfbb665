"""Handles signals that ask a process to end cleanly; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType


def handle_stop_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
