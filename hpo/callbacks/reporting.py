"""Calls from a training program to its sweep: ``report``, ``should_stop`` and ``trial``.

::

    import hpo

    trial = hpo.trial()
    rate = trial.settings.get("learning_rate", 0.1)
    for epoch in range(epochs):
        ...
        hpo.report(epochs=epoch + 1, top1=accuracy, loss=loss)
        if hpo.should_stop():
            break

Outside a sweep, as in a run by hand, ``report`` and ``should_stop`` do nothing and ``trial()`` is empty. This file
needs only Python's standard library, so it may be copied next to a program where the package cannot be installed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat

TRIAL = "HPO_TRIAL"
"""Environment variable that holds the path of the file that describes a program's trial."""
RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "HOROVOD_RANK",
    "SLURM_PROCID",
)
"""Environment variables in which launchers set a process's rank; the first that is set applies."""


@dataclass(frozen=True)
class ProgramTrial:
    """The training run that a program should do; every field is None or empty if it was started by hand.

    ``settings`` holds the known settings and the study's own, by name. Batch sizes are in samples: per update over all
    workers, per update of one worker, and per forward pass of one worker; an update takes ``accumulation`` passes.
    ``epochs`` is the budget. ``checkpoint_folder`` is kept until the run has ended, across restarts; ``output_folder``
    is kept permanently.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    global_batch_size: int | None = None
    local_batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulation: int | None = None
    workers: int | None = None
    epochs: float | None = None
    target: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_folder: str | None = None
    output_folder: str | None = None
    report_file: str | None = None
    stop_file: str | None = None


def trial() -> ProgramTrial:
    """Return the trial that this program was started for, or an empty one if it was started by hand.

    Raises ValueError if the file named in the environment cannot be read.
    """
    path = os.environ.get(TRIAL)
    if not path:
        return ProgramTrial()
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        return ProgramTrial(
            **{name: values[name] for name in ProgramTrial.__dataclass_fields__ if name in values}
        )
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{TRIAL} must be the path of a trial's file, but {path!r} cannot be read as one: "
            f"{error}"
        ) from error


def report(
    *,
    epochs: float | None = None,
    samples: float | None = None,
    steps: float | None = None,
    **metrics: SupportsFloat,
) -> None:
    """Report one evaluation: the progress of the run, and its metrics by name.

    One of ``epochs``, ``samples`` and ``steps`` (updates) gives the progress, counted from the start of the run, even
    after a restart. Besides the metrics of the study, ``train_loss`` (mean since the last report) and ``learning_rate``
    are kept; all others are ignored. Call it in every worker or only in the first: only the first worker's report
    counts. Values may be anything that ``float`` accepts, such as tensors of one element. Raises ValueError if no
    progress is given, and TypeError for a value that is not a number.
    """
    given = {"epochs": epochs, "samples": samples, "steps": steps, **metrics}
    values = {name: _number(name, value) for name, value in given.items() if value is not None}
    if not {"epochs", "samples", "steps"} & values.keys():
        raise ValueError(
            "a report must give the progress of the training: epochs, samples or steps"
        )
    path = trial().report_file
    if path is None or not is_first_worker():
        return
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    line = json.dumps({**finite, "time": time.time()}) + "\n"
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line)


def should_stop() -> bool:
    """Return whether this run should stop: its target is reached, or other trials are better; False if started by hand.

    A program that calls this gets time to exit by itself; one that never does gets SIGTERM at once. The workers of one
    run may see the answer change at different moments, so ask in one worker and broadcast the answer.
    """
    path = trial().stop_file
    if path is None:
        return False
    with contextlib.suppress(OSError):
        Path(path).with_suffix(".listens").touch()
    return Path(path).exists()


def is_first_worker() -> bool:
    """Return whether this process is the run's only worker, or the first one: according to its launcher, and in the
    process group of torch.distributed, if there is one.
    """
    told = next((os.environ[name] for name in RANKS if os.environ.get(name)), "0")
    return told == "0" and _rank_in_group() == 0


def _rank_in_group() -> int:
    """Return the rank in torch.distributed, or 0 if it is not used; a program that starts its workers itself, with
    ``torch.multiprocessing`` or Lightning's own launcher, sets no variable of ``RANKS``.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, but got {value!r}") from error
