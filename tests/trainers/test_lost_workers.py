"""A worker that dies, hangs or never joins: every other worker ends with an error that names it, and none hangs."""

import importlib.util
import signal
import time
from pathlib import Path

import pytest

from tests.trainers.worker_processes import run_horovod, save_job, start_torch_workers, wait
from trainers.report import read_points

pytestmark = pytest.mark.processes

PROGRAM = str(Path(__file__).with_name("lost_worker_program.py"))
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed"
)


@pytest.mark.slow
def test_every_survivor_of_a_killed_worker_names_it(tmp_path):
    save_job(tmp_path / "job.json", epochs=500)
    report = tmp_path / "report.jsonl"
    workers = start_torch_workers(
        3,
        [
            "-m",
            "trainers",
            str(tmp_path / "job.json"),
            "--backend",
            "torch",
            "--report",
            str(report),
            "--threads",
            "1",
            "--timeout",
            "20",
        ],
    )
    deadline = time.monotonic() + 90
    while not (report.exists() and read_points(report)) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers[1].send_signal(signal.SIGKILL)
    codes, answers = wait(workers, 40)
    assert codes == [2, -signal.SIGKILL, 2], answers
    for survivor in (0, 2):
        assert "error: a worker is gone or silent: worker 1 sent no heartbeat" in answers[survivor]
        assert "Traceback" not in answers[survivor]


@pytest.mark.slow
def test_every_survivor_of_a_worker_that_hangs_names_it():
    workers = start_torch_workers(3, [PROGRAM, "torch", "hang", "8"])
    hung = workers.pop(1)
    codes, answers = wait(workers, 60)
    hung.kill()
    hung.communicate()
    assert codes == [2, 2]
    assert all(
        "error: a worker is gone or silent: worker 1 hung: it is alive" in answer
        for answer in answers
    ), answers


@pytest.mark.slow
@needs_horovod
def test_under_horovod_a_hanging_worker_is_named_by_its_peers():
    done = run_horovod(3, [PROGRAM, "horovod", "hang", "8"])
    assert done.returncode != 0
    assert (
        "error: a worker is gone or silent: worker 1 hung: it is alive" in done.stdout + done.stderr
    )


@pytest.mark.slow
@needs_horovod
def test_under_horovod_a_killed_worker_is_named_by_the_launcher_which_ends_the_others():
    done = run_horovod(3, [PROGRAM, "horovod", "kill", "8"])
    assert done.returncode != 0
    assert "Process name: 1\n" in done.stdout + done.stderr


def test_a_worker_that_waits_alone_gives_up_and_names_who_did_not_come(tmp_path):
    save_job(tmp_path / "job.json", epochs=1)
    command = [
        "-m",
        "trainers",
        str(tmp_path / "job.json"),
        "--backend",
        "torch",
        "--timeout",
        "2",
        "--report",
        str(tmp_path / "report.jsonl"),
    ]
    first, second = start_torch_workers(2, command)
    second.kill()
    second.communicate()
    (code,), (answer,) = wait([first], 60)
    assert (
        code == 2
        and "error: a worker is gone or silent: worker 1 did not connect within 2 s" in answer
    )
