"""The samples of a streamed workload, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from trainers.errors import DataError
from trainers.feed.streams import Batch, Part, SampleQueue, first_samples, samples_in_batch
from trainers.workloads.workload import Workload


def training_queue(workload: Workload, seed: int, part: Part, first: int) -> SampleQueue:
    """Return an endless queue of a worker's training samples, epoch after epoch, starting at its sample ``first``.

    A worker's epoch is its share of the declared ``train_samples``: samples beyond its share are skipped, and a stream
    that ends earlier starts again. A single worker's stream must provide as many samples as declared.
    """
    share = part.share(workload.train_samples)
    epoch, skipped = divmod(first, share)
    queue = SampleQueue(_epochs(workload, seed, part, share, epoch))
    queue.skip(skipped)
    return queue


def _epochs(workload: Workload, seed: int, part: Part, share: int, epoch: int) -> Iterator[Batch]:
    name = type(workload).__name__
    while True:
        given = 0
        while given < share:
            before = given
            stream = workload.training_stream(epoch, seed, part)
            for batch in first_samples(stream, share - given):
                given += samples_in_batch(batch)
                yield batch
            if given < share and (part.size == 1 or given == before):
                raise DataError(
                    f"{name}.training_stream gave {given - before} samples to worker {part.rank} of {part.size} in "
                    f"epoch {epoch}, but train_samples declares {workload.train_samples}; "
                    f"correct train_samples or the number of samples in the stream"
                )
        epoch += 1


def check_evaluated(workload: Workload, counted: int) -> None:
    """Raise :class:`~trainers.errors.DataError` if the workers' streams did not provide the declared samples."""
    if counted != workload.evaluation_samples:
        raise DataError(
            f"{type(workload).__name__}.evaluation_stream gave {counted} samples to all workers together, but "
            f"evaluation_samples declares {workload.evaluation_samples}; every sample must "
            f"occur once: correct evaluation_samples, or how the stream is split by part.rank "
            f"and part.size"
        )
