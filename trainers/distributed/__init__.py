"""Connect workers that train one model together, with the same interface for every backend.

``connect`` joins the group of workers; the backend depends on the launcher: none (``single``), horovodrun
(``horovod``) or torchrun (``torch``). Backends are imported on demand.
"""

from __future__ import annotations

from search_spaces.names import nearest_or_all
from trainers.distributed.communicator import ALL_REDUCES, BACKENDS, Communicator
from trainers.distributed.device import choose_device, wanted_device
from trainers.errors import CommunicationError

__all__ = ["ALL_REDUCES", "BACKENDS", "Communicator", "connect"]


def connect(
    backend: str,
    *,
    timeout_seconds: float = 600.0,
    all_reduce: str = "default",
    group_size: int | None = None,
    fusion_megabytes: float | None = None,
    cycle_milliseconds: float | None = None,
    device: str | None = None,
) -> Communicator:
    """Join the other workers; every worker raises an error if a peer is silent for ``timeout_seconds``.

    ``device`` is one of :data:`trainers.distributed.device.DEVICES`; None means the value of ``HPO_DEVICE`` or, if that
    is unset, a GPU if there is one.

    ``all_reduce`` is the algorithm for sums: default (the backend's own), torus, hierarchical or masters
    (:mod:`trainers.distributed.all_reduce`); the last three use ``group_size`` workers per row or node.
    ``fusion_megabytes`` and ``cycle_milliseconds`` are Horovod's fusion threshold and cycle time.
    """
    _check_options(backend, all_reduce, group_size, fusion_megabytes, cycle_milliseconds)
    wanted = wanted_device(device)
    if backend == "single":
        from trainers.distributed.single import SingleProcessCommunicator

        return SingleProcessCommunicator(choose_device(wanted=wanted))
    if backend == "horovod":
        from trainers.distributed.horovod import HorovodCommunicator

        return HorovodCommunicator(
            timeout_seconds,
            all_reduce,
            fusion_megabytes=fusion_megabytes,
            cycle_milliseconds=cycle_milliseconds,
            device=wanted,
        )
    from trainers.distributed.torch_distributed import TorchCommunicator

    return TorchCommunicator(timeout_seconds, all_reduce, group_size, device=wanted)


def _check_options(
    backend: str,
    all_reduce: str,
    group_size: int | None,
    fusion_megabytes: float | None,
    cycle_milliseconds: float | None,
) -> None:
    if backend not in BACKENDS:
        raise CommunicationError(
            f"there is no backend {backend!r}{nearest_or_all(backend, BACKENDS)}"
        )
    if all_reduce not in ALL_REDUCES:
        raise CommunicationError(
            f"there is no all-reduce {all_reduce!r}{nearest_or_all(all_reduce, ALL_REDUCES)}"
        )
    if backend != "torch" and group_size is not None:
        raise CommunicationError(
            f"the group size is an option of the torch backend, not of {backend}; leave it out"
        )
    if backend != "horovod" and (fusion_megabytes is not None or cycle_milliseconds is not None):
        raise CommunicationError(
            f"fusion and cycle time are options of Horovod, not of {backend}; leave them out"
        )
