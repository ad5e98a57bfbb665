"""Workers of a test as forks of one process, which imports PyTorch once for all of them."""

import os
import socket
import traceback


def run_forked(size, work):
    """Run ``work()`` as each of ``size`` workers of torch.distributed; whether all of them ended well.

    The process must have imported what the workers need and have started no thread.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    workers = [_fork(str(rank), work) for rank in range(size)]
    return all(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0 for worker in workers)


def _fork(rank, work):
    worker = os.fork()
    if worker:
        return worker
    try:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
