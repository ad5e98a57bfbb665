"""The watch over GPU operations, with fake operations, and with real ones of gloo that a lost worker blocks."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time

import pytest

from tests.trainers.worker_processes import start_torch_workers, wait
from trainers.distributed.operation_watch import LOST_STATUS, OperationWatch
from trainers.errors import CommunicationError


class Operation:
    def __init__(self, after=0.0, error=None):
        self.ends, self.error = time.monotonic() + after, error

    def is_completed(self):
        return self.error is not None or time.monotonic() >= self.ends

    def wait(self):
        if self.error:
            raise self.error


class Watched:
    """A watch with a timeout of 0.4 s, and what it ended with."""

    def __init__(self, found=None):
        self.errors, self.over, self.found = [], threading.Event(), found
        self.watch = OperationWatch(0.4, 0.02, find=self._find, check=self._check, end=self._end)

    def _find(self, error):
        return CommunicationError(f"worker 3 is gone ({error})")

    def _check(self):
        if self.found:
            raise CommunicationError(self.found)

    def _end(self, error):
        self.errors.append(str(error))
        self.over.set()


def test_operations_that_come_to_their_end_are_forgotten():
    watched = Watched()
    for _ in range(50):
        watched.watch.add(Operation(after=0.01))
        time.sleep(0.02)  # together longer than the timeout
    assert not watched.over.is_set()
    watched.watch.close()
    assert not watched.watch._pending or watched.watch._pending[0][1].is_completed()


def test_an_operation_that_does_not_end_names_the_lost_worker():
    watched = Watched()
    watched.watch.add(Operation(after=0.01))
    watched.watch.add(Operation(after=60))
    started = time.monotonic()
    assert watched.over.wait(30)
    assert time.monotonic() - started >= 0.3
    assert watched.errors == ["worker 3 is gone (an operation has not ended for 0.4 s)"]


@pytest.mark.parametrize(
    ("operation", "found", "said"),
    [
        (Operation(error=RuntimeError("NCCL error 6")), None, "worker 3 is gone (NCCL error 6)"),
        (Operation(after=math.inf), "worker 1 hung", "worker 1 hung"),  # another survivor found it
    ],
)
def test_an_operation_that_failed_and_what_others_found_end_it_at_once(operation, found, said):
    watched = Watched(found)
    watched.watch.add(operation)
    assert watched.over.wait(30) and watched.errors == [said]


def test_the_process_ends_though_its_main_thread_is_stuck():
    program = """
import threading
from trainers.distributed.operation_watch import OperationWatch
from trainers.errors import CommunicationError
class Stuck:
    def is_completed(self): return False
watch = OperationWatch(0.1, 0.02, find=lambda error: CommunicationError("worker 1 is gone"), check=lambda: None)
watch.add(Stuck())
threading.Event().wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (LOST_STATUS, "error: worker 1 is gone\n")


PROGRAM = """
import os, sys, time, torch
import torch.distributed as dist
from trainers.distributed import connect
from trainers.distributed.operation_watch import OperationWatch
communicator = connect("torch", timeout_seconds=8, device="cpu")
monitor = communicator._monitor
communicator._watch = OperationWatch(6, 0.2, find=monitor.lost, check=monitor.check)
for step in range(3):
    communicator.all_reduce_sum_([torch.ones(10)])
if communicator.rank == 1:
    if sys.argv[1] == "kill":
        os._exit(9)
    time.sleep(300)
flat = torch.ones(10)
monitor.begin()
work = dist.all_reduce(flat, async_op=True)
communicator._watch.add(work)  # nobody waits on the host, as with NCCL
time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "words"), [("kill", "worker 1 "), ("hang", "worker 1 hung: it is alive")]
)
def test_real_operations_that_nobody_waits_for_name_the_worker_that_holds_them_up(
    tmp_path, way, words
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    workers = start_torch_workers(3, [str(program), way])
    lost = workers.pop(1)
    try:
        codes, answers = wait(workers, 150)
    finally:
        lost.kill()
        lost.communicate()
    assert codes == [LOST_STATUS, LOST_STATUS], answers
    assert all(f"error: a worker is gone or silent: {words}" in answer for answer in answers), (
        answers
    )
