"""How the commands of this package end: one exit status for each kind of failure, and nobody waits for the dead."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from trainers.errors import TrainerError


def exit_status(
    work: Callable[[argparse.Namespace], int | None], options: argparse.Namespace
) -> int:
    """Do the work: 0 it is done, 2 a TrainerError, told in one line on stderr, 1 any other failure.

    Work that gives a number back has ended in a way of its own, and that number is the status.
    """
    try:
        return work(options) or 0
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        return 2
    except Exception:
        traceback.print_exc()
        return 1


def leave(status: int) -> NoReturn:
    """End this process; one that failed must not wait in an exit handler for its peers: the launcher ends them."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
    sys.exit(0)
