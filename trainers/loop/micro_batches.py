"""Load the micro batches of one worker, update by update, in the layout of each update."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainers.distributed.communicator import Communicator
from trainers.distributed.sampling import BatchLayout, MicroBatchCut, SampleStream, batch_layout
from trainers.errors import JobError, WorkloadError
from trainers.feed.streams import Part
from trainers.job import TrainingJob
from trainers.loop.prefetch import prefetch_results
from trainers.loop.replica import Replica
from trainers.loop.streamed import training_queue
from trainers.numerics.normalization import statistics_depend_on_micro_batches
from trainers.schedules.adascale import adascale_layout
from trainers.schedules.batch_size import BatchSchedule, BatchSizePhase
from trainers.schedules.noise_scale import MEASURED_EVERY, measured_layout
from trainers.workloads.workload import Batch, Workload


@dataclass(frozen=True)
class MicroBatch:
    """The inputs of one forward pass; ``share`` is its fraction of the local batch."""

    batch: Batch
    share: float
    ends_chunk: bool
    ends_update: bool


class MicroBatchLoader:
    """Loads one worker's part of the samples; raises :class:`~trainers.errors.JobError` if no batch layout fits."""

    def __init__(
        self,
        workload: Workload,
        job: TrainingJob,
        batch_schedule: BatchSchedule,
        communicator: Communicator,
        replica: Replica,
    ) -> None:
        self._workload, self._seed, self._rank = workload, job.seed, communicator.rank
        self._part = Part(communicator.rank, communicator.size)
        self._job, self._replica, self._copies = job, replica, replica.copies
        self._stream = SampleStream(workload.train_samples, job.seed)
        self._every = MEASURED_EVERY if job.settings.adascale_batch_size is None else 1
        self.follow(batch_schedule)

    def follow(self, batch_schedule: BatchSchedule) -> None:
        """Cut updates by another schedule from now on; micro batches already yielded follow the old schedule."""
        self._batch_schedule, job, replica = batch_schedule, self._job, self._replica
        self._layouts = {
            phase: _layout(phase, job, self._workload, self._part.size, replica.group_size)
            for phase in batch_schedule.phases
        }
        self._measured = {
            phase: _measured(layout, job, replica) for phase, layout in self._layouts.items()
        }

    def layout(self, step: int) -> BatchLayout:
        """Return the layout of update ``step``."""
        phase = self._batch_schedule.phase(step)
        return self.measured(step) or self._layouts[phase]

    def measured(self, step: int) -> BatchLayout | None:
        """Return the layout of update ``step`` if its gradient norms are measured (at a fixed interval from step 0)."""
        return None if step % self._every else self._measured[self._batch_schedule.phase(step)]

    def micro_batches(self, first_step: int, every: int = 1) -> Iterator[MicroBatch]:
        """Yield this worker's micro batches of update ``first_step`` and every ``every``-th later update, endlessly."""
        cuts = itertools.chain.from_iterable(
            self.cuts(step, self.layout(step)) for step in itertools.count(first_step, every)
        )
        loading = (
            self._loading_streamed(first_step, every) if self._workload.streamed else self._loading
        )
        sent = prefetch_results(
            (loading(*cut) for cut in cuts),
            self._workload.prefetched_batches,
            1 if self._workload.streamed else self._workload.concurrent_batches,
        )
        return map(self._received, sent)

    def cuts(self, step: int, layout: BatchLayout) -> Iterator[tuple[MicroBatchCut, float, bool]]:
        """Yield the cuts of update ``step`` in ``layout``, each with its batch share and whether it is the last one."""
        left = layout.micro_batches
        for cut in layout.cuts(self._batch_schedule.samples(step), self._rank):
            left -= 1
            yield cut, cut.count / layout.local_batch_size, left == 0

    def load(self, cut: MicroBatchCut, share: float, ends_update: bool) -> MicroBatch:
        """Load the samples of one cut of an update onto the device, with its share of the local batch."""
        return self._received(self._loading(cut, share, ends_update)())

    def _received(self, micro: MicroBatch) -> MicroBatch:
        batch = self._copies.receive(micro.batch)
        return MicroBatch(batch, micro.share, micro.ends_chunk, micro.ends_update)

    def _loading_streamed(
        self, first_step: int, every: int
    ) -> Callable[[MicroBatchCut, float, bool], Callable[[], MicroBatch]]:
        """Like :meth:`_loading`, but from a stream that starts with the first sample of update ``first_step``."""
        if every != 1:
            raise WorkloadError(
                f"asynchronous training reads samples by index, but the samples of {type(self._workload).__name__} "
                "come as a stream; set update_mode to 'synchronous'"
            )
        first = int(self._batch_schedule.samples(first_step)) // self._part.size
        queue = training_queue(self._workload, self._seed, self._part, first)

        def loading(
            cut: MicroBatchCut, share: float, ends_update: bool
        ) -> Callable[[], MicroBatch]:
            def load() -> MicroBatch:
                sent = self._copies.send(queue.take(cut.count))
                return MicroBatch(sent, share, cut.ends_chunk, ends_update)

            return load

        return loading

    def _loading(
        self, cut: MicroBatchCut, share: float, ends_update: bool
    ) -> Callable[[], MicroBatch]:
        """Return a function, callable in any thread, that loads a micro batch and starts its copy to the device."""
        samples = self.samples(cut)

        def load() -> MicroBatch:
            return MicroBatch(self._copies.send(samples()), share, cut.ends_chunk, ends_update)

        return load

    def samples(self, cut: MicroBatchCut) -> Callable[[], Batch]:
        """Return a function, callable in any thread, that loads the samples of a cut."""
        indices, epochs = self._stream.take(cut.first, cut.count)
        return lambda: self._workload.training_batch(indices, epochs, self._seed)


def _layout(
    phase: BatchSizePhase, job: TrainingJob, workload: Workload, workers: int, group_size: int
) -> BatchLayout:
    largest = job.micro_batch_size or max(group_size, workload.largest_micro_batch)
    try:
        return batch_layout(phase.global_batch_size, workers, group_size, largest)
    except JobError as error:
        if phase.global_batch_size == job.global_batch_size:
            raise
        control = job.settings.batch_control
        cause = (
            "batch_factors, which lead"
            if control == "piecewise"
            else f"batch_control {control!r}, which leads"
        )
        raise JobError(
            f"{cause} from global_batch_size {job.global_batch_size} to "
            f"{phase.global_batch_size} at update {phase.first_step}: {error}"
        ) from error


def _measured(layout: BatchLayout, job: TrainingJob, replica: Replica) -> BatchLayout | None:
    settings = job.settings
    if settings.adascale_batch_size is not None:
        chunks = adascale_layout(layout, settings.adascale_batch_size, replica.group_size)
        return chunks if chunks.chunks > 1 else None
    if (
        settings.gradient_reduction != "mean"
    ):  # unless gradients are averaged, the norms do not measure the noise
        return None
    return measured_layout(
        layout, replica.group_size, may_cut=not statistics_depend_on_micro_batches(replica.model)
    )
