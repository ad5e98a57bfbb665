"""Ways to reduce the gradients of ResNet-50, against the backend's plain all-reduce, and what overlap gains.

Starts the workers itself, all on this machine, over gloo: it measures the loopback and the cores, not a network.
Each line is the time of one way over that of ``torch.distributed.all_reduce`` on the same numbers in buckets of
25 MB, both run alternately on the same connection, each the minimum over several rounds.

    python benchmarks/all_reduce.py [--workers N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WAYS: list[tuple[str, dict[str, object], dict[str, str]]] = [
    ("default", {}, {}),
    ("default, fp16", {}, {"compression": "fp16"}),
    ("default, bf16", {}, {"compression": "bf16"}),
    ("torus, nearest to a square", {"all_reduce": "torus"}, {}),
    ("torus, nearest to a square, fp16", {"all_reduce": "torus"}, {"compression": "fp16"}),
    ("hierarchical, 2 a node", {"all_reduce": "hierarchical", "group_size": 2}, {}),
    ("masters, 2 a node", {"all_reduce": "masters", "group_size": 2}, {}),
    ("default, adasum", {}, {"reduction": "adasum"}),
]


def main() -> None:
    """Print a table: ways and their times relative to the plain all-reduce, then the gain of overlap."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "RANK" in os.environ:
        _work(options.rounds)
    else:
        _start(options.workers, options.rounds)


def _start(workers: int, rounds: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        **os.environ,
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, __file__, "--rounds", str(rounds)]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(workers)
    ]
    sys.exit(max(worker.wait() for worker in started))


def _work(rounds: int) -> None:
    import torch

    from trainers.distributed import connect
    from trainers.workloads.resnet.model import build_resnet

    torch.set_num_threads(1)
    model = build_resnet("resnet50", 3, 1000, 64, 16)
    for way, connection, reduction in WAYS:
        communicator = connect("torch", timeout_seconds=120, **connection)  # type: ignore[arg-type]
        _say(
            communicator.rank,
            f"{way:34} {_relative_time(model, communicator, reduction, rounds):5.2f}",
        )
        communicator.close()
    communicator = connect("torch", timeout_seconds=120)
    _overlap(communicator, rounds)
    communicator.close()


def _relative_time(model, communicator, reduction, rounds) -> float:  # type: ignore[no-untyped-def]
    import torch
    import torch.distributed as dist

    from trainers.distributed.buckets import BUCKET_BYTES
    from trainers.distributed.reducer import GradientReducer

    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    numbers = sum(parameter.numel() for parameter in parameters)
    flat = list(torch.zeros(numbers).split(BUCKET_BYTES // 4))

    def plain() -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in flat]:
            work.wait()

    reducer = GradientReducer(parameters, communicator, **reduction)
    ours, base = _in_turns(communicator, [reducer.finish, plain], rounds)
    return ours / base


def _overlap(communicator, rounds) -> None:  # type: ignore[no-untyped-def]
    import torch

    from trainers.distributed.reducer import GradientReducer
    from trainers.workloads.resnet.model import build_resnet

    model = build_resnet("resnet50", 3, 1000, 64, 4)
    images = torch.randn(4, 3, 96, 96).contiguous(memory_format=torch.channels_last)
    reducer = GradientReducer(list(model.parameters()), communicator)

    def step(arm: bool, finish: bool) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad()
            loss = model(images).square().mean()
            if arm:
                reducer.arm()
            loss.backward()
            if finish:
                reducer.finish()

        return run

    alone, after, beside = _in_turns(
        communicator, [step(False, False), step(False, True), step(True, True)], rounds
    )
    _say(
        communicator.rank,
        "a step of ResNet-50, 4 images of 96x96 a worker, relative to one without communication:\n"
        f"reduced after back-propagation {after / alone:.2f}, beside it {beside / alone:.2f}",
    )


def _in_turns(communicator, actions, rounds) -> list[float]:  # type: ignore[no-untyped-def]
    """Return the minimum seconds of each action on this worker, as that is disturbed least by other programs."""
    seconds: list[list[float]] = [[] for _ in actions]
    for at in range(rounds + 1):
        for action, taken in zip(actions, seconds, strict=True):
            communicator.barrier()
            began = time.perf_counter()
            action()
            if at:  # the first round warms up
                taken.append(time.perf_counter() - began)
    return [min(taken) for taken in seconds]


def _say(rank: int, line: str) -> None:
    if rank == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
