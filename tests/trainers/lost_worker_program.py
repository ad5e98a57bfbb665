"""One of several workers, of which the last but one dies or hangs after its third sum; the error goes to stderr."""

import os
import signal
import sys
import time

import torch

from trainers import TrainerError
from trainers.distributed import connect


def lose(way):
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(25)


def main(backend, way, timeout_seconds):
    torch.set_num_threads(1)
    communicator = connect(backend, timeout_seconds=timeout_seconds)
    for step in range(10**6):
        if step == 3 and communicator.rank == communicator.size - 2:
            lose(way)
        communicator.all_reduce_sum_([torch.ones(1000)])


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        os._exit(2)
