"""``python -m trainers.staging`` as a launch script calls it: one process per node, and one that is killed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainers.staging_nodes import CountingOpener
from trainers.staging import stage
from trainers.staging.__main__ import main

pytestmark = pytest.mark.processes

ROOT = str(Path(__file__).parent.parent.parent)


def start(arguments, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "trainers.staging", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def start_nodes(count, shared, folder, *options):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return [
        start(
            [shared, folder / str(rank), "--backend", "torch", "--timeout", "20", *options],
            RANK=str(rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(count)
    ]


def wait(processes):
    try:
        return [(process.communicate(timeout=90), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def fill(folder, files, size):
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:02}.h5").write_bytes(random.Random(number).randbytes(size))
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.h5")}


@pytest.mark.slow
def test_three_processes_stage_together(tmp_path):
    shared = fill(tmp_path / "shared", files=7, size=5_000_000)
    answers = wait(start_nodes(3, shared, tmp_path))
    assert [code for _, code in answers] == [0, 0, 0], answers
    result = json.loads(answers[0][0][0])
    assert answers[1][0][0] == answers[2][0][0] == ""
    assert (result["shared_reads"], result["shared_bytes_read"], result["nodes"]) == (
        7,
        35_000_000,
        3,
    )
    assert all(content(tmp_path / str(node)) == content(shared) for node in range(3))


@pytest.mark.slow
def test_a_killed_staging_goes_on_where_it_was(tmp_path):
    shared, local = fill(tmp_path / "shared", files=60, size=2_000_000), tmp_path / "local"
    process = start([shared, local, "--threads", "1"])
    manifest = local / ".staging" / "manifest.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        manifest.exists() and manifest.read_text().count("\n") > 4
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert wait([process])[0][1] == -signal.SIGKILL
    staged = content(local)
    assert 0 < len(staged) < 60 and staged.items() <= content(shared).items()

    opener = CountingOpener()
    stage(shared, local, open_shared=opener)
    assert content(local) == content(shared)
    assert (
        60 - len(staged) <= len(opener.opened) <= 60 - len(staged) + 1
    )  # killed between the name and the note
    assert sorted(path.name for path in (local / ".staging").iterdir()) == [
        "lock",
        "manifest.jsonl",
    ]


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main([str(tmp_path / "absent"), str(tmp_path / "local")]) == 2
    assert "error: the shared folder" in capsys.readouterr().err
    shared = fill(tmp_path / "shared", files=1, size=10)
    (shared / "01.h5").symlink_to(tmp_path / "gone")
    assert main([str(shared), str(tmp_path / "local")]) == 2
    assert (
        capsys.readouterr().err
        == f"error: cannot stage {shared / '01.h5'}: No such file or directory\n"
    )
    with pytest.raises(SystemExit):
        main(["shared", "local", "--mode", "some"])
    assert "invalid choice: 'some'" in capsys.readouterr().err
