"""Stop a training run early and resume it: stop requests, checkpoints and restarts.

A time slot on a machine may end, or a node may fail. A training run saves a checkpoint at its evaluations. When asked
to stop, it continues to the next evaluation, saves and exits. When restarted with the same checkpoint, it continues as
if it had never stopped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.distributed.communicator import STORE_FILE
from trainers.errors import CheckpointError
from trainers.numerics.threads import launched_local_size
from trainers.report import ConvergencePoint, TrainingOutcome

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.workloads.training_run import AnyTraining

STOPPED = 75
"""The exit status of a run that saved after a stop request: EX_TEMPFAIL of sysexits.h, "try again later"."""

AGENTS = ("TORCHELASTIC_RUN_ID", "HOROVOD_GLOO_RENDEZVOUS_ADDR", STORE_FILE)
"""Environment variables set by torchrun, by horovodrun over Gloo and by :mod:`trainers.local_workers`.

These launchers stop workers with SIGTERM, and treat any status but 0 as a crash.
"""


class StopRequests:
    """Detects requests to stop this run: SIGUSR1, SIGTERM, or a file that appears.

    Under a launcher that stops its workers with SIGTERM (``AGENTS``), that signal keeps its default effect: it arrives
    when another worker is lost, and then there is no next evaluation. The signals are handled inside a ``with`` block.
    """

    def __init__(self, stop_file: Path | None = None) -> None:
        self._stop_file = stop_file
        self._signalled = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():  # handlers need the main thread
            for number in (
                (signal.SIGUSR1,) if under_agent(os.environ) else (signal.SIGUSR1, signal.SIGTERM)
            ):
                self._before[number] = signal.signal(number, lambda *_: self._note())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Return whether this process was asked to stop."""
        return self._signalled or (self._stop_file is not None and self._stop_file.exists())

    def agreed(self, communicator: Communicator) -> bool:
        """Return whether any worker was asked to stop; all must call this, and all get the same answer."""
        return agreed_by_workers(
            communicator, self._signalled if communicator.rank else self.asked()
        )

    def _note(self) -> None:
        self._signalled = True


def agreed_by_workers(communicator: Communicator, asked: bool) -> bool:
    """Return whether any worker is asked to stop; all must call this, and all get the same answer."""
    if communicator.size == 1:
        return asked
    import torch

    votes = torch.tensor([float(asked)], device=communicator.device)
    communicator.all_reduce_sum_([votes])
    return float(votes) > 0


def finish_or_stop(
    training: AnyTraining,
    communicator: Communicator,
    report: Callable[[ConvergencePoint], None],
    *,
    checkpoint: Path,
    seconds_between: float,
    stop: StopRequests,
) -> TrainingOutcome | None:
    """Advance a run to its end, or until asked to stop; return None if it was stopped.

    Worker 0 reports each evaluation and saves the checkpoint at the end, before a stop, and otherwise at the first
    evaluation at least ``seconds_between`` seconds after the last save; 0 means at every evaluation.
    """
    from trainers.loop import checkpoint as checkpoints

    saved = time.monotonic()
    while not training.finished:
        point = training.advance()
        stopped = stop.agreed(communicator)
        told = point if communicator.rank == 0 else None
        if told is not None:
            report(told)
        due = stopped or training.finished or time.monotonic() - saved >= seconds_between
        if agreed_by_workers(communicator, told is not None and due):
            training.gather()
            if told is not None:
                checkpoints.save(checkpoint, training.state_dict())
            saved = time.monotonic()
        if stopped and not training.finished:
            communicator.barrier()  # the exit of one worker ends all, so each waits until the checkpoint is saved
            return None
    return training.outcome


def stopped_status(environment: Mapping[str, str]) -> int:
    """Return the exit status of a stopped run: ``STOPPED``, or 0 under a launcher that treats it as a crash."""
    return 0 if under_agent(environment) else STOPPED


def under_agent(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun or horovodrun supervises this process."""
    return any(name in environment for name in AGENTS)


def count_nodes(communicator: Communicator, environment: Mapping[str, str]) -> int:
    """Return the number of nodes, from the launcher's workers per node; 1 if not set. All workers must call this."""
    local = launched_local_size(environment) or communicator.size
    if communicator.size == 1:
        return 1
    import torch

    shares = torch.tensor([1.0 / max(1, local)], dtype=torch.float64, device=communicator.device)
    communicator.all_reduce_sum_([shares])
    return max(1, round(float(shares)))


def resume_from_checkpoint(
    training: AnyTraining, communicator: Communicator, checkpoint: Path
) -> None:
    """Load ``checkpoint`` if it exists, on every worker or on none.

    Raises :class:`CheckpointError` if only some workers see the file, or if it belongs to another run.
    """
    import torch

    from trainers.loop import checkpoint as checkpoints

    found = torch.tensor([float(checkpoint.exists())], device=communicator.device)
    communicator.all_reduce_mean_([found])
    if 0 < float(found) < 1:
        raise CheckpointError(
            f"only some of the workers see the checkpoint {checkpoint}; it must be on a "
            "shared file system"
        )
    if float(found) == 1:
        training.load_state_dict(checkpoints.load(checkpoint))


def finish_training(
    training: AnyTraining,
    communicator: Communicator,
    report: Callable[[ConvergencePoint], None],
    *,
    checkpoint: Path | None = None,
) -> TrainingOutcome:
    """Advance a run to its end; worker 0 reports each evaluation and then saves the checkpoint."""
    from trainers.loop import checkpoint as checkpoints

    while not training.finished:
        point = training.advance()
        if communicator.rank == 0 and point is not None:
            report(point)
        if checkpoint is not None:
            training.gather()
            if communicator.rank == 0 and point is not None:
                checkpoints.save(checkpoint, training.state_dict())
    return training.outcome
