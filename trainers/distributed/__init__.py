"""Workers that train one model together, behind one protocol.

``connect`` joins the group that the launcher started: none (``single``), horovodrun (``horovod``) or torchrun
(``torch``). Backends are imported when they are asked for.
"""

from __future__ import annotations

from trainers.distributed.communicator import Communicator
from trainers.errors import CommunicationError, nearest

__all__ = ["BACKENDS", "Communicator", "connect"]

BACKENDS = ("single", "horovod", "torch")


def connect(backend: str, *, timeout_seconds: float = 600.0) -> Communicator:
    """Join the other workers; a peer silent for ``timeout_seconds`` is an error on every worker."""
    if backend == "single":
        from trainers.distributed.single import SingleProcess
        return SingleProcess()
    if backend == "horovod":
        from trainers.distributed.horovod import HorovodCommunicator
        return HorovodCommunicator(timeout_seconds)
    if backend == "torch":
        from trainers.distributed.torch_distributed import TorchCommunicator
        return TorchCommunicator(timeout_seconds)
    raise CommunicationError(f"there is no backend {backend!r}{nearest(backend, BACKENDS)}")
