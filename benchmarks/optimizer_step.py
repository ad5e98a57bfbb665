"""One step of LARS and of LAMB: the project's optimizers, a plain loop over tensors, and the package pytorch_optimizer.

Each runs over its own copy of a network's parameters with random gradients. A round times one step of each in turn,
after the gradients are rewritten (as backward does; the package overwrites them), so that a change of the machine's
load affects all equally. The medians, and the medians of the ratios within a round, are printed. Before timing,
the project's weights and the loop's are compared after three steps. ``--floor`` also times the minimal memory traffic
of LARS and LAMB: each tensor is read or written once, without arithmetic.

With ``--rules`` the step of every optimizer of the project is timed against AdamW's instead, over the parameters of a
transformer and of a residual network, and ``torch.optim.Muon`` over the transformer's matrices.

With ``--shared``, each of several workers times Muon's and SOAP's steps, with the work shared among workers and done by
each alone, and ``torch.optim.Muon``'s and AdamW's over the same matrices.

    python benchmarks/optimizer_step.py [--threads N] [--rounds N] [--networks NAME ...] [--floor | --rules]
    python -m trainers.local_workers 2 torch benchmarks/optimizer_step.py --shared [muon] [soap]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytorch_optimizer
import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.distributed import Communicator, connect
from trainers.optimizers import make_optimizer
from trainers.workloads.resnet.model import build_resnet

Step = Callable[[], object]

RATE, DECAY, MOMENTUM, COEFFICIENT, EPSILON, BETAS = 0.1, 1e-4, 0.9, 0.001, 1e-6, (0.9, 0.999)

NETWORKS: dict[str, Callable[[], list[nn.Parameter]]] = {
    "resnet50": lambda: list(build_resnet("resnet50", 3, 1000, 64, 32).parameters()),
    "resnet50, norm and bias": lambda: [one for one in NETWORKS["resnet50"]() if one.ndim == 1],
    "resnet20": lambda: list(build_resnet("resnet20", 3, 10, 16, 32).parameters()),
    "resnet8, width 8": lambda: list(build_resnet("resnet8", 3, 10, 8, 32).parameters()),
}


def transformer(blocks: int = 4, width: int = 256) -> list[nn.Parameter]:
    """Return the matrices and vectors of a transformer without its embedding table and head."""
    layers = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(blocks)
    ]
    return [parameter for layer in layers for parameter in layer.parameters()]


RULES = {
    "transformer, 3.2 M": transformer,
    "resnet20": NETWORKS["resnet20"],
}


def measure_rules(network: str, rounds: int) -> dict[str, list[float]]:
    """Time one step of every optimizer in each round, and of torch's Muon if all parameters are matrices."""
    racers: dict[str, tuple[Step, list[nn.Parameter]]] = {}
    for name in OPTIMIZERS.built_in:
        moved = RULES[network]()
        rule = make_optimizer(moved, TrainingSettings(optimizer=name, weight_decay=DECAY))
        racers[name] = partial(rule.step, 1e-4), moved
    if network.startswith("transformer"):
        matrices = [one for one in RULES[network]() if one.ndim == 2]
        racers["torch.optim.Muon, bf16"] = torch.optim.Muon(matrices, lr=1e-4).step, matrices
        for precision in ("fp32", "bf16"):
            moved = [one for one in RULES[network]() if one.ndim == 2]
            rule = make_optimizer(moved, TrainingSettings(optimizer="muon", precision=precision))
            racers[f"muon, matrices, {precision}"] = partial(rule.step, 1e-4), moved
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for number in range(-2, rounds):
        for name, (step, moved) in racers.items():
            for parameter in moved:
                parameter.grad = torch.randn_like(parameter).mul_(0.01)
            started = time.perf_counter()
            step()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def measure_shared(
    communicator: Communicator, optimizers: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Time one step over the transformer's matrices in each round; all workers begin each step together."""
    racers: dict[str, tuple[Step, list[nn.Parameter]]] = {}
    compared = [("adamw", "adamw", None)] + [
        (f"{each}, {way}", each, workers)
        for each in optimizers
        for way, workers in (("by each worker", None), ("shared", communicator))
    ]
    for name, optimizer, workers in compared:
        moved = [one for one in transformer() if one.ndim == 2]
        rule = make_optimizer(moved, TrainingSettings(optimizer=optimizer), None, workers)
        racers[name] = partial(rule.step, 1e-4), moved
    if "muon" in optimizers:
        matrices = [one for one in transformer() if one.ndim == 2]
        racers["torch.optim.Muon, bf16"] = torch.optim.Muon(matrices, lr=1e-4).step, matrices
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for number in range(-2, rounds):
        for name, (step, moved) in racers.items():
            for parameter in moved:
                parameter.grad = torch.randn_like(parameter).mul_(0.01)
            communicator.barrier()
            started = time.perf_counter()
            step()
            communicator.barrier()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


class LoopLARS:
    """LARS written directly from the paper, tensor by tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.buffers = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """One update."""
        for weight, buffer in zip(self.parameters, self.buffers, strict=True):
            gradient = weight.grad
            rate: float | Tensor = RATE
            if weight.ndim > 1:
                weight_norm, gradient_norm = weight.norm(), gradient.norm()
                if weight_norm > 0 and gradient_norm > 0:
                    rate = RATE * COEFFICIENT * weight_norm / (gradient_norm + DECAY * weight_norm)
                gradient = gradient.add(weight, alpha=DECAY)
            buffer.mul_(MOMENTUM).add_(rate * gradient)
            weight.sub_(buffer)


class LoopLAMB:
    """LAMB written directly from the paper, without bias correction (like the package), tensor by tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.first = [torch.zeros_like(parameter) for parameter in parameters]
        self.second = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """One update."""
        for weight, first, second in zip(self.parameters, self.first, self.second, strict=True):
            gradient = weight.grad
            first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            update = first / (second.sqrt() + EPSILON) + DECAY * weight
            weight_norm, update_norm = weight.norm(), update.norm()
            ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            weight.sub_(RATE * ratio * update)


def contenders(
    rule: str, parameters: Callable[[], list[nn.Parameter]]
) -> dict[str, tuple[Step, list[nn.Parameter]]]:
    """Return each contender's step and the parameters that it updates; all start equal."""
    lists = {
        name: parameters() for name in ("here", "loop", "package, foreach", "package, per tensor")
    }
    first = lists["here"]
    for others in lists.values():
        for mine, its in zip(first, others, strict=True):
            its.data.copy_(mine.data)
    if rule == "lars":
        here = make_optimizer(
            first,
            TrainingSettings(
                optimizer="lars",
                weight_decay=DECAY,
                momentum=MOMENTUM,
                trust_coefficient=COEFFICIENT,
            ),
        )
        loop: LoopLARS | LoopLAMB = LoopLARS(lists["loop"])
        package = {
            foreach: pytorch_optimizer.LARS(
                lists[name],
                lr=RATE,
                weight_decay=DECAY,
                momentum=MOMENTUM,
                trust_coefficient=COEFFICIENT,
                foreach=foreach,
            )
            for name, foreach in (("package, foreach", True), ("package, per tensor", False))
        }
    else:
        here = make_optimizer(
            first,
            TrainingSettings(
                optimizer="lamb",
                weight_decay=DECAY,
                epsilon=EPSILON,
                bias_correction=False,
                adapt_norm_and_bias=True,
                decay_norm_and_bias=True,
            ),
        )
        loop = LoopLAMB(lists["loop"])
        package = {
            foreach: pytorch_optimizer.Lamb(
                lists[name],
                lr=RATE,
                weight_decay=DECAY,
                betas=BETAS,
                eps=EPSILON,
                weight_decouple=False,
                foreach=foreach,
            )
            for name, foreach in (("package, foreach", True), ("package, per tensor", False))
        }
    steps: dict[str, Step] = {
        "here": lambda: here.step(RATE),
        "loop": loop.step,
        "package, foreach": package[True].step,
        "package, per tensor": package[False].step,
    }
    return {name: (steps[name], lists[name]) for name in steps}


def measure(rule: str, network: str, rounds: int) -> dict[str, list[float]]:
    """Time one step of each contender in each round."""
    racers = contenders(rule, NETWORKS[network])
    gradients = [torch.empty_like(one).normal_(std=0.01) for one in racers["here"][1]]
    for _, parameters in racers.values():
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for number in range(-3, rounds):
        for name, (step, parameters) in racers.items():
            torch._foreach_copy_([one.grad for one in parameters], gradients)
            started = time.perf_counter()
            step()
            elapsed = time.perf_counter() - started
            if number >= 0:
                seconds[name].append(elapsed)
        if number == -1:
            _compare(racers["here"][1], racers["loop"][1])
    return seconds


def _compare(here: list[nn.Parameter], loop: list[nn.Parameter]) -> None:
    for mine, its in zip(here, loop, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-6)


def floor(elements: int, rule: str, rounds: int) -> float:
    """Return the median seconds to read or write each tensor of a step once, in blocks of 1 MB, without arithmetic.

    LARS reads w and g for the norms, then reads w, g, v and writes w, v; LAMB reads w, g, m, v, writes m, v, and
    writes w. Reads are sums, writes are fills.
    """
    reads, writes = {"lars": (3, 2), "lamb": (4, 3)}[rule]
    tensors = [torch.ones(elements) for _ in range(reads)]
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for tensor in tensors:
            tensor.sum()
        for tensor in tensors[:writes]:
            tensor.fill_(1.0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Print a table of medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds (0: 15 of ResNet-50, 300 of the small lists)"
    )
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--shared", nargs="*", choices=("muon", "soap"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.rules:
        for network in RULES:
            _print_rules(network, measure_rules(network, options.rounds or 21))
        return
    if options.shared is not None:
        communicator = connect("torch")
        chosen = options.shared or ("muon", "soap")
        seconds = measure_shared(communicator, chosen, options.rounds or 20)
        if communicator.rank == 0:
            _print_rules(f"matrices, {communicator.size} workers", seconds)
        communicator.close()
        return
    print(
        f"{options.threads} thread(s), torch {torch.__version__}; ms per step; x: ratio to 'here'"
    )
    for network in options.networks:
        for rule in ("lars", "lamb"):
            seconds = measure(
                rule, network, options.rounds or (15 if network == "resnet50" else 300)
            )
            row = [
                f"{name} {1e3 * statistics.median(times):.3f} (fastest {1e3 * min(times):.3f}"
                + _ratio(times, seconds["here"], name)
                + ")"
                for name, times in seconds.items()
            ]
            if options.floor and network == "resnet50":
                elements = sum(one.numel() for one in NETWORKS[network]())
                row.append(f"floor {1e3 * floor(elements, rule, 15):.3f}")
            print(f"{network:24} {rule}  " + "   ".join(row), flush=True)


def _print_rules(network: str, seconds: dict[str, list[float]]) -> None:
    print(f"| {network} | ms | mean, ms | of AdamW's |\n|---|--:|--:|--:|")
    for name, times in seconds.items():
        ratio = statistics.median(
            its / mine for its, mine in zip(times, seconds["adamw"], strict=True)
        )
        middle, mean = 1e3 * statistics.median(times), 1e3 * statistics.mean(times)
        print(f"| {name} | {middle:.2f} | {mean:.2f} | {ratio:.2f}x |")
    print(flush=True)


def _ratio(times: list[float], here: list[float], name: str) -> str:
    if name == "here":
        return ""
    of_rounds = statistics.median(its / mine for its, mine in zip(times, here, strict=True))
    return f"; {of_rounds:.2f}x, of the fastest {min(times) / min(here):.2f}x"


if __name__ == "__main__":
    main()
