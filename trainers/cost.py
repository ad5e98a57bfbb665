"""The cost of one sample of a workload: arithmetic, memory, bytes to read, decoding time, and gradient size.

A model is measured, not estimated: one forward and backward pass runs on PyTorch's meta device, which does no
arithmetic, and every operation and every tensor kept for the backward pass is counted. The host's work per sample is
timed on this machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.settings import TrainingSettings
from trainers.errors import WorkloadError
from trainers.workloads.host_work import host_seconds_per_sample
from trainers.workloads.workload import AnyWorkload, Batch, Workload, some_samples

if TYPE_CHECKING:
    from torch import Tensor, nn

SAMPLES = 2
"""The number of samples in the measured pass: one normalization group."""

READ_SAMPLES = 4
"""The number of samples whose reads are measured, after a first sample that opens the files."""

PROCESS_IO = Path("/proc/self/io")


@dataclass(frozen=True)
class WorkloadCost:
    """The figures of a workload that a time model needs.

    ``parameters`` is the number of trained parameters, in ``gradient_tensors`` tensors. ``flops_per_sample`` is the
    number of floating-point operations of the forward and backward pass, 2 per multiply-add.
    ``activation_bytes_per_sample`` are the bytes that the forward pass keeps for the backward pass, in fp32.
    ``sample_bytes`` are the bytes read from storage per sample, or 0 for samples that stay in memory.
    ``host_seconds_per_sample`` is the time one processor core takes to decode and augment a sample, and
    ``evaluation_samples`` the number of samples in one evaluation; both are 0 if they are not counted.
    """

    parameters: int
    gradient_tensors: int
    flops_per_sample: float
    activation_bytes_per_sample: float
    sample_bytes: float
    host_seconds_per_sample: float = 0.0
    evaluation_samples: int = 0


FIGURES = tuple(each.name for each in dataclasses.fields(WorkloadCost))
NEEDED_FIGURES = FIGURES[:5]
WHOLE_FIGURES = ("parameters", "gradient_tensors", "evaluation_samples")


def workload_cost(workload: AnyWorkload, settings: TrainingSettings | None = None) -> WorkloadCost:
    """Return the cost of a workload's samples, with its model built from ``settings``.

    Raises :class:`~trainers.errors.WorkloadError` for a workload that has its own training loop, and therefore an
    unknown cost, unless it defines ``cost() -> WorkloadCost``.
    """
    from trainers.workloads.noisy_quadratic.task import NoisyQuadratic
    from trainers.workloads.program.task import ProgramWorkload

    if isinstance(workload, NoisyQuadratic):
        return _of_quadratic(workload.problem.modes)
    if isinstance(workload, ProgramWorkload):
        return _of_program(workload.options.cost)
    if not isinstance(workload, Workload):
        own = getattr(workload, "cost", None)
        if own is None:
            raise WorkloadError(
                f"the cost of {type(workload).__name__}, which has its own training loop, "
                f"cannot be measured; define cost() -> WorkloadCost in the class"
            )
        return WorkloadCost(**dataclasses.asdict(own()))
    return _of_workload(workload, settings or TrainingSettings())


def model_cost(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    sample_bytes: float,
) -> WorkloadCost:
    """Count the operations and bytes per sample of the model that ``build`` returns; ``batch``: ``(n, ...)`` tensors.

    The model runs on the meta device, or on the CPU if the model or its loss depends on tensor values.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            return _counted(build, loss, batch, sample_bytes, "meta")
        except (NotImplementedError, RuntimeError):  # such as item() of a tensor without values
            return _counted(build, loss, batch, sample_bytes, "cpu")


def _of_workload(workload: Workload, settings: TrainingSettings) -> WorkloadCost:

    sample_bytes = _sample_bytes(
        workload
    )  # measured first, because libraries cache samples that they have read
    count = min(SAMPLES, workload.train_samples)
    settings = dataclasses.replace(settings, normalization_batch_size=count)
    batch = workload.prepare(some_samples(workload, count))
    counted = model_cost(
        lambda: workload.build_model(settings),
        lambda model, samples: workload.loss(model, samples, settings),
        batch,
        sample_bytes,
    )
    return dataclasses.replace(
        counted,
        host_seconds_per_sample=host_seconds_per_sample(workload),
        evaluation_samples=workload.evaluation_samples,
    )


def _counted(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    sample_bytes: float,
    device: str,
) -> WorkloadCost:
    import torch
    from torch.utils._pytree import tree_leaves, tree_map
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device(device):
        model = build().to(device).train()
        batch = tree_map(lambda tensor: tensor.to(device), batch)
        parameters = [each for each in model.parameters() if each.requires_grad]
        kept: dict[int, tuple[Tensor, int]] = {}
        ours = {
            each.untyped_storage()._cdata
            for each in (*model.parameters(), *model.buffers(), *tree_leaves(batch))
        }

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in ours:
                kept[storage._cdata] = (
                    tensor,
                    storage.nbytes(),
                )  # holding the tensor keeps the id of its storage unique
            return tensor

        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                value = loss(model, batch)
            value.backward()  # type: ignore[no-untyped-call]
    count = len(tree_leaves(batch)[0])
    return WorkloadCost(
        sum(each.numel() for each in parameters),
        len(parameters),
        counter.get_total_flops() / count,
        sum(size for _, size in kept.values()) / count,
        sample_bytes,
    )


def _of_program(cost: Mapping[str, float | str] | str | None) -> WorkloadCost:
    """Return the cost that the study states for its program at full scale, which cannot be measured."""
    given = {} if cost is None or isinstance(cost, str) else cost
    if not set(NEEDED_FIGURES) <= set(given) <= set(FIGURES):
        raise WorkloadError(
            f"a program's cost cannot be measured; give {', '.join(NEEDED_FIGURES)} under "
            f"program.cost, and {' and '.join(FIGURES[len(NEEDED_FIGURES) :])} if they matter"
        )
    return WorkloadCost(
        **{
            name: int(given[name]) if name in WHOLE_FIGURES else float(given[name])
            for name in given
        }  # type: ignore[arg-type]
    )


def _of_quadratic(modes: int) -> WorkloadCost:
    """Return the cost of the quadratic: per mode, one product and sum forward and two of each backward; no reads."""
    return WorkloadCost(modes, 1, 6.0 * modes, 8.0 * modes, 0.0)


def _sample_bytes(workload: Workload) -> float:
    """Return the bytes that the process reads per sample, from files or from the operating system's cache.

    For a stream, which reads ahead, or if the operating system does not count bytes, return the size of the tensors.
    """
    import torch

    if workload.streamed:
        return _bytes_of(some_samples(workload, 1))
    count = max(1, min(READ_SAMPLES, workload.train_samples - 1))
    indices = torch.linspace(0, workload.train_samples - 1, count + 1).long()
    epochs = torch.zeros(count, dtype=torch.int64)
    workload.training_batch(indices[:1], epochs[:1], 0)
    before, again = _bytes_read(), _bytes_read()
    batch = workload.training_batch(indices[1:], epochs, 0)
    after = _bytes_read()
    if before is None or again is None or after is None:
        return _bytes_of(batch) / count
    looking = again - before  # the bytes that reading the counter itself adds
    return max(0.0, float(after - again - looking)) / count


def _bytes_of(batch: Batch) -> float:
    from torch.utils._pytree import tree_leaves

    return float(sum(tensor.numel() * tensor.element_size() for tensor in tree_leaves(batch)))


def _bytes_read() -> int | None:
    try:
        lines = PROCESS_IO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("rchar:")), None)
