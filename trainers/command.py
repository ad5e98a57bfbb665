"""End the commands of this package with one exit status per kind of failure, without waiting for dead peers."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from trainers.errors import TrainerError


def trainer_exit_status(
    work: Callable[[argparse.Namespace], int | None], options: argparse.Namespace
) -> int:
    """Do the work; return 0 on success, 2 for a TrainerError (one line on stderr), and 1 for any other failure.

    If the work returns a number, that number is the exit status.
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


def end_trainer_process(status: int) -> NoReturn:
    """End this process. If it failed, it must not wait for its peers in an exit handler: the launcher ends them."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
    sys.exit(0)
