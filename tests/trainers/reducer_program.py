"""One of several workers: reduces known gradients in every way that a backend has, and saves the results.

Under torch it starts the workers itself (``python reducer_program.py FOLDER torch WORKERS``).
"""

import importlib
import sys
from itertools import product
from pathlib import Path

import torch
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from trainers.distributed import connect
from trainers.distributed.reducer import GradientReducer

SHAPES = [(7, 3), (5,), (), (61, 17), (2, 3, 4, 5), (4, 4), *[(3,)] * 40, (1,), (9,)]
NEVER, ONLY_ELSEWHERE, STRIDED, TRANSPOSED = (
    1,
    5,
    4,
    0,
)  # parameters without gradient, or with another layout
VARIANTS = {
    "default": {},
    "torus": {"all_reduce": "torus"},
    "torus4": {"all_reduce": "torus", "group_size": 4},
    "hierarchical": {"all_reduce": "hierarchical", "group_size": 2},
    "masters": {"all_reduce": "masters", "group_size": 2},
}


def gradients(rank):
    """The gradients of a worker; None where it has none."""
    generator = torch.Generator().manual_seed(100 + rank)
    common = torch.Generator().manual_seed(1)
    found = [
        torch.randn(shape, generator=generator) + torch.randn(shape, generator=common)
        for shape in SHAPES
    ]
    found[NEVER] = None
    if rank == 0:
        found[ONLY_ELSEWHERE] = None
    found[STRIDED] = found[STRIDED].contiguous(memory_format=torch.channels_last)
    found[TRANSPOSED] = found[TRANSPOSED].t().contiguous().t()
    return found


def model_and_data(rank):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(13, 31),
        torch.nn.Tanh(),
        torch.nn.Linear(31, 31),
        torch.nn.Tanh(),
        torch.nn.Linear(31, 3),
    )
    torch.manual_seed(7 + rank)
    return model, [torch.randn(6, 13) for _ in range(2)]


def loss(model, data):
    return model(data).square().mean()


def reduced(communicator, **options):
    """``finish`` alone, then ``start`` and ``wait`` with other gradients written over those that travel."""
    parameters = [Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = GradientReducer(parameters, communicator, bucket_bytes=3000, **options)
    results = []
    for _ in range(2):  # the second time in memory used before
        for parameter, gradient in zip(parameters, gradients(communicator.rank), strict=True):
            parameter.grad = gradient
        pending = reducer.start()
        reducer.finish()
        finished = [parameter.grad.clone() for parameter in parameters]
        results = [finished, pending.wait()]
    return results


def overlapped(communicator, **options):
    """Gradients of two micro batches, armed for the second, and the same without overlap."""
    found = []
    for armed in (True, False):
        model, data = model_and_data(communicator.rank)
        reducer = GradientReducer(
            list(model.parameters()), communicator, bucket_bytes=600, **options
        )
        for _ in range(2):
            model.zero_grad()
            loss(model, data[0]).backward()
            if armed:
                reducer.arm()
            loss(model, data[1]).backward()
            reducer.finish()
        found.append([parameter.grad for parameter in model.parameters()])
    return found


def hooked(hook, state, rank):
    model, data = model_and_data(rank)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.002)
    wrapped.register_comm_hook(state, hook)
    for _ in range(2):
        wrapped.zero_grad()
        loss(wrapped, data[0]).backward()
    return [parameter.grad for parameter in model.parameters()]


def reductions(communicator, variant):
    results = {}
    for compression, reduction in product(("none", "fp16", "bf16"), ("mean", "adasum")):
        name = f"{variant}.{reduction}.{compression}"
        options = {"compression": compression, "reduction": reduction}
        results[f"{name}.finish"], results[f"{name}.start"] = reduced(communicator, **options)
    for options in ({}, {"compression": "fp16"}, {"reduction": "adasum"}):
        name = ".".join([variant, *options.values()])
        results[f"{name}.armed"], results[f"{name}.unarmed"] = overlapped(communicator, **options)
    whole = [torch.full((5,), float(communicator.rank + 1)), torch.tensor(float(communicator.rank))]
    communicator.all_reduce_sum_(whole)
    results[f"{variant}.sums"] = whole
    return results


def hooks(rank):
    from trainers.distributed.ddp_hooks import HookState, fp16_hook, hierarchical_hook, torus_hook

    return {
        "hook.fp16": hooked(fp16_hook, HookState(), rank),
        "hook.torus": hooked(torus_hook, HookState.torus(), rank),
        "hook.torus_fp16": hooked(torus_hook, HookState.torus(compression=torch.float16), rank),
        "hook.hierarchical": hooked(hierarchical_hook, HookState.hierarchical(2), rank),
    }


def main(folder, backend):
    torch.set_num_threads(1)
    results = {}
    for variant, options in (
        VARIANTS.items() if backend == "torch" else [("default", {"fusion_megabytes": 1})]
    ):
        communicator = connect(backend, timeout_seconds=60, **options)
        results |= reductions(communicator, variant)
        if variant == "default" and backend == "torch":
            results |= hooks(communicator.rank)
        communicator.barrier()
        communicator.close()
    torch.save(results, folder / f"{backend}.{communicator.rank}.pt")


def main_of_forks(folder, size):
    from tests.trainers.forked_workers import run_forked

    importlib.import_module("torch._dynamo")  # DistributedDataParallel imports it
    importlib.import_module("trainers.distributed.ddp_hooks")
    importlib.import_module("trainers.distributed.torch_distributed")
    return 0 if run_forked(size, lambda: main(folder, "torch")) else 1


if __name__ == "__main__":
    if sys.argv[2] == "torch":
        sys.exit(main_of_forks(Path(sys.argv[1]), int(sys.argv[3])))
    main(Path(sys.argv[1]), sys.argv[2])
