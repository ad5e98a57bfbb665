"""Start the workers of a test: plain processes for torch.distributed, horovodrun for Horovod."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob

ROOT = str(Path(__file__).parents[2])


def environment(**variables):
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ROOT, **variables}


def start_torch_workers(size, command):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, *command],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(size)
    ]


def wait(workers, seconds):
    """The exit status and the standard error of each."""
    try:
        answers = [worker.communicate(timeout=seconds)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return [worker.returncode for worker in workers], answers


def run_horovod(size, command, *options, seconds=180):
    """The finished horovodrun."""
    launcher = str(Path(sys.executable).with_name("horovodrun"))
    return subprocess.run(
        [launcher, "-np", str(size), *options, sys.executable, *command],
        env=environment(),
        timeout=seconds,
        check=False,
        capture_output=True,
        text=True,
    )


def save_job(path, epochs):
    """A training of the digits, for three workers or any number that divides 96 as well."""
    TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        global_batch_size=96,
        settings=TrainingSettings(learning_rate=0.1, normalization_batch_size=8),
        seed=1,
        epochs=epochs,
        evaluations_per_epoch=4,
    ).save(path)
