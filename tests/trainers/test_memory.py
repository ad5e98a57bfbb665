import subprocess
import sys

import pytest

from tests.trainers.worker_processes import environment

# page faults of eight rounds that fill and free 24 MB, without and with the memory being kept
PROGRAM = """
import resource
from trainers.numerics.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        blocks = [bytes(10**5) for _ in range(240)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
kept = keep_freed_memory()
faults()
print(int(kept), without, faults())
"""


def test_memory_that_is_kept_is_not_faulted_in_again():
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    kept, without, faults = map(int, answer.stdout.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert faults < 0.2 * without
