"""The interface through which a worker communicates with the others. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BACKENDS = ("single", "horovod", "torch")
"""The backends, by launcher: none, horovodrun or MPI, or torchrun."""

STORE_FILE = "HPO_STORE_FILE"
"""The environment variable for a file through which workers on one machine meet, instead of a store on a port."""

ALL_REDUCES = ("default", "torus", "hierarchical", "masters")
"""All-reduce algorithms: the backend's own, a 2D torus, within nodes and then between them, or one master per node."""


class CollectiveWork(Protocol):
    """A running collective operation."""

    def wait(self) -> object:
        """Return when the operation is done; raise :class:`~trainers.errors.CommunicationError` if it fails."""


class Communicator(Protocol):
    """Collective operations, called by all workers in the same order; tensors change in place.

    Every operation raises :class:`~trainers.errors.CommunicationError` when a peer is gone, instead of waiting.
    """

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def size(self) -> int:
        """The number of workers."""

    @property
    def device(self) -> torch.device:
        """The device on which this worker computes."""

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, of any shape and floating-point type, with its mean over the workers."""

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, of any shape, with its sum over the workers."""

    def start_sum_(self, flat: Tensor) -> CollectiveWork:
        """Start replacing a contiguous tensor, shape ``(numbers,)``, with its sum over the workers.

        Every worker must start its sums in the same order and leave ``flat`` alone until the wait is over.
        """

    def start_adasum_(self, flat: Tensor, sizes: Sequence[int]) -> CollectiveWork:
        """Start combining ``flat``, ``(numbers,)``, over the workers by Adasum (Maleki et al., arXiv:2006.02924).

        Each stretch of ``sizes`` numbers, such as the gradient of one layer, is combined separately. The number of
        workers must be a power of two. The numbers after the last stretch are undefined.
        """

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Replace each tensor with the values of worker ``root``; shape and type must be the same on every worker."""

    def barrier(self) -> None:
        """Wait until every worker has reached this call."""

    def close(self) -> None:
        """Leave the group."""
