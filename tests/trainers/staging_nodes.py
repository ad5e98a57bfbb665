"""Several nodes in one process: threads that exchange tensors, and shared folders that count their reads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from trainers.errors import CommunicationError
from trainers.staging import stage


class ThreadCommunicator:
    """A communicator between the threads of one process."""

    device = torch.device("cpu")

    def __init__(self, rank, size, barrier, board):
        self.rank, self.size, self._barrier, self._board = rank, size, barrier, board

    def all_reduce_sum_(self, tensors):
        self._board[self.rank] = [tensor.clone() for tensor in tensors]
        self.barrier()
        for tensor, *parts in zip(tensors, *self._board, strict=True):
            tensor.copy_(torch.stack(parts).sum(0))
        self.barrier()

    def broadcast_(self, tensors, root=0):
        if self.rank == root:
            self._board[root] = [tensor.clone() for tensor in tensors]
        self.barrier()
        for tensor, sent in zip(tensors, self._board[root], strict=True):
            tensor.copy_(sent)
        self.barrier()

    def barrier(self):
        try:
            self._barrier.wait(timeout=30)
        except threading.BrokenBarrierError as error:
            raise CommunicationError("a worker is gone or silent") from error


def stage_on(nodes, shared, folder, **options):
    """Stage on each of the nodes into ``folder/<node>``; the results, or the errors, node by node."""
    barrier, board = threading.Barrier(nodes), [None] * nodes

    def one(node):
        own = {
            name: value[node] if isinstance(value, list) else value
            for name, value in options.items()
        }
        try:
            return stage(
                shared, folder / str(node), ThreadCommunicator(node, nodes, barrier, board), **own
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(nodes) as pool:
        return list(pool.map(one, range(nodes)))


class CountingOpener:
    """Opens files of the shared folder and remembers each opening."""

    def __init__(self):
        self.opened = []

    def __call__(self, path):
        self.opened.append(path.name)
        return path.open("rb", buffering=0)
