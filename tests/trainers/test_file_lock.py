"""Locks of files between processes."""

import subprocess
import sys

import pytest

from trainers.private_files import lock_file


def test_a_lock_keeps_others_out_until_its_holder_has_ended(tmp_path):
    path = tmp_path / "lock"
    holds = (
        "import sys; from trainers.private_files import lock_file; file = open(sys.argv[1], 'w'); "
        "lock_file(file); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", holds, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder, path.open("a") as file:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            lock_file(file)
        with pytest.raises(BlockingIOError):
            lock_file(file, 0.1)
        holder.stdin.close()
        lock_file(file, 30)
