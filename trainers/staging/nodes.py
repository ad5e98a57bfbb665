"""Stage files on all nodes together, step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import torch

from trainers.distributed.communicator import Communicator
from trainers.distributed.single import SingleProcessCommunicator
from trainers.errors import DataError
from trainers.staging.exchange import StagedFileWriter, exchange_files
from trainers.staging.faults import (
    READING,
    WRITING,
    StagingFaults,
    agree_on_staging_faults,
    broadcast_bytes,
)
from trainers.staging.local_folder import LocalFolder, local_folder
from trainers.staging.plan import SharedFile, StagingPlan, list_shared_files, make_plan
from trainers.staging.reading import Opener, ReadingTask, SharedFileReader, open_unbuffered
from trainers.staging.result import StagingResult


def stage(
    shared: Path | str,
    local: Path | str,
    communicator: Communicator | None = None,
    *,
    mode: str = "all",
    pattern: str = "*",
    seed: int = 0,
    files_per_node: int | None = None,
    threads: int = 4,
    open_shared: Opener = open_unbuffered,
) -> StagingResult:
    """Copy the files of ``shared`` that match ``pattern`` to ``local``, by ``mode``; every node must call this.

    Complete files from an earlier staging of the same folder are kept unless this node no longer needs them.
    ``open_shared`` opens a file of the shared folder, once per file over all nodes.

    Raises:
        DataError: on every node, naming the node and the file, if a file is missing, unreadable, changed or damaged in
            transit, or if a disk is full; files staged so far are kept for the next call.
        CommunicationError: if a node is lost.
    """
    started = time.perf_counter()
    communicator = communicator or SingleProcessCommunicator(torch.device("cpu"))
    shared, local = Path(shared).resolve(), Path(local).resolve()
    faults = StagingFaults()
    with contextlib.ExitStack() as open_things:
        files = _agree_on_files(communicator, faults, shared, pattern)
        with faults.noted(WRITING):
            _check(shared, local, threads)
            plan = make_plan(
                files, communicator.rank, communicator.size, mode, seed, files_per_node
            )
            folder = open_things.enter_context(
                local_folder(local, {"shared": str(shared), "pattern": pattern})
            )
            missing = _missing(folder, plan, threads)
        agree_on_staging_faults(communicator, faults)
        moved = _move(communicator, faults, shared, folder, plan, missing, threads, open_shared)
        result = _result(communicator, mode, plan, moved, started)
        folder.record(
            {"staging": result.to_dict(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
        )
    return result


@dataclasses.dataclass(frozen=True)
class MovedBytes:
    """The number of bytes that this node read from the shared folder and wrote to its local folder."""

    read: Sequence[SharedFile]
    written: Sequence[SharedFile]


def _agree_on_files(
    communicator: Communicator, faults: StagingFaults, shared: Path, pattern: str
) -> tuple[SharedFile, ...]:
    """List the folder on node 0 for all nodes, so that they work from the same list."""
    text = b"[]"
    if communicator.rank == 0:
        with faults.noted(READING):
            text = json.dumps(
                [dataclasses.astuple(file) for file in list_shared_files(shared, pattern)]
            ).encode()
    agree_on_staging_faults(communicator, faults)
    return tuple(SharedFile(*values) for values in json.loads(broadcast_bytes(communicator, text)))


def _check(shared: Path, local: Path, threads: int) -> None:
    if threads < 1:
        raise DataError(f"threads must be at least 1, but got {threads}")
    if local == shared or shared in local.parents or local in shared.parents:
        raise DataError(
            f"the local folder must lie outside the shared one, but got {local} and {shared}"
        )


def _missing(folder: LocalFolder, plan: StagingPlan, threads: int) -> frozenset[int]:
    """Return the files of this node that are not yet complete on its disk."""
    folder.remove_all_but({plan.files[index].name for index in plan.kept})
    wanted = sorted(plan.kept)
    with ThreadPoolExecutor(threads) as pool:
        held = pool.map(folder.holds, [plan.files[index] for index in wanted])
        missing = frozenset(index for index, whole in zip(wanted, held, strict=True) if not whole)
    folder.check_space(sum(plan.files[index].bytes for index in missing))
    return missing


def _move(
    communicator: Communicator,
    faults: StagingFaults,
    shared: Path,
    folder: LocalFolder,
    plan: StagingPlan,
    missing: frozenset[int],
    threads: int,
    open_shared: Opener,
) -> MovedBytes:
    sent = _sent(communicator, plan, missing)
    to_send = set(sent[communicator.rank])
    tasks = [
        ReadingTask(
            plan.files[index],
            keep=index in missing,
            send=index in to_send,
            from_shared=index in missing or index not in plan.kept,
        )
        for index, reader in enumerate(plan.reader)
        if reader == communicator.rank and (index in to_send or index in missing)
    ]
    names = frozenset(plan.files[index].name for index in missing)
    reader = SharedFileReader(shared, folder, faults, threads, open_shared)
    writer = StagedFileWriter(folder, names, faults, threads)
    try:
        reader.start(tasks)
        exchange_files(
            communicator,
            [[plan.files[index] for index in each] for each in sent],
            reader,
            writer,
            faults,
        )
        reader.wait()
        writer.wait()
        agree_on_staging_faults(communicator, faults)
    finally:
        faults.stop.set()
        reader.wait()
        writer.wait()
    return MovedBytes(reader.read, [*reader.written, *writer.written])


def _sent(
    communicator: Communicator, plan: StagingPlan, missing: frozenset[int]
) -> list[list[int]]:
    """Return the files that each node must send because another node lacks them."""
    counts = torch.zeros(len(plan.files), dtype=torch.int64)
    for index in missing:
        counts[index] = int(plan.reader[index] != communicator.rank)
    counts = counts.to(communicator.device)
    communicator.all_reduce_sum_([counts])
    sent: list[list[int]] = [[] for _ in range(communicator.size)]
    for index in counts.nonzero().flatten().tolist():
        sent[plan.reader[index]].append(index)
    return sent


def _result(
    communicator: Communicator, mode: str, plan: StagingPlan, moved: MovedBytes, started: float
) -> StagingResult:
    read_bytes, written_bytes = (
        sum(file.bytes for file in files) for files in (moved.read, moved.written)
    )
    totals = torch.tensor(
        [len(moved.read), read_bytes], dtype=torch.int64, device=communicator.device
    )
    communicator.all_reduce_sum_([totals])
    return StagingResult(
        mode=mode,
        node=communicator.rank,
        nodes=communicator.size,
        files=len(plan.kept),
        files_read=len(moved.read),
        bytes_read=read_bytes,
        files_written=len(moved.written),
        bytes_written=written_bytes,
        shared_reads=int(totals[0]),
        shared_bytes_read=int(totals[1]),
        seconds=time.perf_counter() - started,
    )
