"""Ghost batch norm with its shortcut and ReLU: one fused operation against the composition of PyTorch's operations.

Both forms, forward and backward, alternate within each round; the ratio is the median over the rounds. The sizes are
those of layers of resnet8 and resnet20 at usual batches, of ResNet-50 and of DeepLabv3+. On a GPU the trainer uses the
composition, as the fused form was not measured there; ``--device cuda`` measures it.

    python benchmarks/ghost_batch_norm.py [--rounds N] [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from trainers.numerics import normalization
from trainers.numerics.memory import keep_freed_memory
from trainers.numerics.normalization import GhostBatchNorm, _FusedGroups

LAYERS = (
    ("resnet8, 64 in groups of 16", (64, 8, 8, 8), 16),
    ("resnet8, 256 in groups of 64", (256, 8, 8, 8), 64),
    ("resnet20, last stage, 128 in groups of 32", (128, 64, 8, 8), 32),
    ("resnet20, first stage, 128 in groups of 32", (128, 16, 32, 32), 32),
    ("ResNet-50, first stage, 32 in one group", (32, 64, 56, 56), 32),
    ("ResNet-50, first stage, 32 in groups of 8", (32, 64, 56, 56), 8),
    ("DeepLabv3+, 96x144, 4 in groups of 1", (4, 64, 96, 144), 1),
)


def main() -> None:
    """Print one row for each layer, without and with a shortcut."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    device = torch.device(options.device)
    print("| layer | elements | shortcut | composition, ms | fused, ms | ratio | used |")
    print("|---|---:|---|---:|---:|---:|---|")
    for name, shape, group_size in LAYERS:
        for adds in (False, True):
            layer = Layer(shape, group_size, device, adds=adds)
            taken = [layer.both(fused_first=number % 2 == 0) for number in range(options.rounds)]
            composed, fused = zip(*taken, strict=True)
            ratio = statistics.median(mine / theirs for theirs, mine in taken)
            used = layer.norm._fuses(layer.x, layer.shortcut)
            print(
                f"| {name} | {layer.x.numel():,} | {'yes' if adds else 'no'} | "
                f"{statistics.median(composed):.3f} | {statistics.median(fused):.3f} | {ratio:.2f} | "
                f"{'fused' if used else 'composition'} |",
                flush=True,
            )


class Layer:
    """One normalization with its input and its incoming gradient."""

    def __init__(
        self, shape: tuple[int, ...], group_size: int, device: torch.device, *, adds: bool
    ) -> None:
        torch.manual_seed(0)
        self.norm = GhostBatchNorm(shape[1], group_size).to(device)

        def drawn() -> torch.Tensor:
            return torch.randn(shape).to(device, memory_format=torch.channels_last)

        self.x, self.gradient = drawn().requires_grad_(), drawn()
        self.shortcut = drawn().requires_grad_() if adds else None
        self.repeats = max(1, 2**21 // self.x.numel())
        self.milliseconds(fused=True)
        self.milliseconds(fused=False)

    def both(self, *, fused_first: bool) -> tuple[float, float]:
        """Return the milliseconds of the composition and of the fused operation."""
        first = self.milliseconds(fused=fused_first)
        second = self.milliseconds(fused=not fused_first)
        return (second, first) if fused_first else (first, second)

    def milliseconds(self, *, fused: bool) -> float:
        """Time one forward and backward pass: CPU time, or wall-clock time on a device."""
        least, normalization.FUSED_ELEMENTS = normalization.FUSED_ELEMENTS, 0 if fused else 2**62
        clock = time.process_time if self.x.device.type == "cpu" else self._clock
        started = clock()
        for _ in range(self.repeats):
            self.norm.groups = 0
            for tensor in (self.x, self.shortcut, *self.norm.parameters()):
                if tensor is not None:
                    tensor.grad = None
            self._output(fused).backward(self.gradient)
        normalization.FUSED_ELEMENTS = least
        return 1000 * (clock() - started) / self.repeats

    def _output(self, fused: bool) -> torch.Tensor:
        norm = self.norm
        if not fused:
            return norm(self.x, self.shortcut, relu=True)
        return _FusedGroups.apply(
            self.x, self.shortcut, norm.weight, norm.bias, norm.update_mean, norm.update_var,
            norm.group_size, 0, norm.epsilon, True,
        )  # fmt: skip

    def _clock(self) -> float:
        torch.cuda.synchronize(self.x.device)
        return time.perf_counter()


if __name__ == "__main__":
    main()
