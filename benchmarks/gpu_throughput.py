"""Samples per second of a training on one accelerator, and their share of its measured matrix-multiplication peak.

ResNet-50 at 224x224 and DeepLabv3+ at 768x1152x16 are trained by ``trainers.loop.synchronous`` on samples that are on
the device, so that neither disk nor augmentation is included. The floating-point operations of an update are counted
by PyTorch, not quoted; the peak is that of a large square matrix product in the same precision, measured in the same
run.

    python -m benchmarks.gpu_throughput [--model resnet50|deeplabv3plus] [--precision bf16] [--batch N] [--small]

``--small`` shrinks samples, networks and matrices, so that the command can be tried without an accelerator.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.distributed.single import SingleProcessCommunicator
from trainers.job import Target, TrainingJob
from trainers.numerics.normalization import GhostBatchNorm
from trainers.numerics.precision import REDUCED_TYPES
from trainers.workloads import Batch, Workload
from trainers.workloads.resnet.model import build_resnet
from trainers.workloads.segmentation.deeplab import DeepLab
from trainers.workloads.training_run import TrainingRun

ROUNDS = 5
UPDATES_PER_ROUND = 10
LARGEST_GROUP = 32


class OnDevice(Workload):
    """One batch of random samples on the device, used repeatedly."""

    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}
    evaluation_samples = 1

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.model_name: str = data["model"]
        samples, small = data["batch"], data["small"]
        self.width = 16 if small else 64
        self.largest_micro_batch, self.train_samples = samples, samples * UPDATES_PER_ROUND
        device = SingleProcessCommunicator().device
        if self.model_name == "resnet50":
            side = 64 if small else 224
            inputs, self.targets = (
                torch.randn(samples, 3, side, side),
                torch.randint(1000, (samples,), device=device),
            )
        else:
            height, width = (48, 72) if small else (768, 1152)
            inputs = torch.randn(samples, 16, height, width)
            self.targets = torch.randint(3, (samples, height, width), device=device)
        self.inputs = inputs.to(device, memory_format=torch.channels_last)

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """ResNet-50, or DeepLabv3+ with the decoder at full resolution."""
        group = settings.normalization_batch_size
        if self.model_name == "resnet50":
            return build_resnet("resnet50", 3, 1000, self.width, group)
        model = DeepLab(
            self.model_name, 16, 3, self.width, lambda features: GhostBatchNorm(features, group)
        )
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Return as many samples as requested."""
        return self.evaluation_batch(indices)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return as many samples as requested."""
        return self.inputs[: len(indices)], self.targets[: len(indices)]

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:  # noqa: ARG002
        """Cross entropy, of images or of pixels."""
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        """Return a dummy score on the device of the batch, as nothing is evaluated here."""
        return {"loss": torch.ones(len(batch[0]), device=batch[0].device)}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", choices=("resnet50", "deeplabv3plus"))
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", *REDUCED_TYPES))
    parser.add_argument(
        "--batch", type=int, help="samples per update (default: 256, for deeplabv3plus 4)"
    )
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    batch = options.batch or (256 if options.model == "resnet50" else 4)
    training = begin(options.model, options.precision, batch, small=options.small)
    operations = operations_per_sample(training, batch)
    rate = max(samples_per_second(training, batch) for _ in range(ROUNDS))
    peak = matrix_peak(
        REDUCED_TYPES.get(options.precision, torch.float32), 1024 if options.small else 8192
    )  # fp32 products in TF32 or not, as set by the training
    device = SingleProcessCommunicator().device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{options.model}, {options.precision}, batch {batch}{', small' if options.small else ''}, {name}: "
        f"{rate:.1f} samples/s, {operations / 1e9:.2f} G operations a sample, {operations * rate / 1e12:.3f} T/s of "
        f"a measured peak of {peak / 1e12:.3f} T/s ({operations * rate / peak:.0%})"
    )


def begin(model: str, precision: str, batch: int, *, small: bool) -> TrainingRun:
    """Return a training whose intervals between evaluations are the rounds of this benchmark."""
    job = TrainingJob(
        workload="benchmarks.gpu_throughput:OnDevice",
        data={"model": model, "batch": batch, "small": small},
        target=Target("loss", 0.0, higher_is_better=False),
        global_batch_size=batch,
        seed=0,
        epochs=ROUNDS + 2,
        evaluations_per_epoch=1,
        settings=TrainingSettings(
            learning_rate=1e-4,
            precision=precision,
            normalization_batch_size=math.gcd(LARGEST_GROUP, batch),
        ),
    )
    return begin_training(job)


def operations_per_sample(training: TrainingRun, batch: int) -> float:
    """Count the floating-point operations, forward and backward, over a round that also warms up."""
    with FlopCounterMode(display=False) as counter:
        training.advance()
    return counter.get_total_flops() / (batch * UPDATES_PER_ROUND)


def samples_per_second(training: TrainingRun, batch: int) -> float:
    """Return the rate of one round, which ends with an evaluation of one sample."""
    started = time.perf_counter()
    training.advance()  # reads the losses at its end, so the device has finished
    return batch * UPDATES_PER_ROUND / (time.perf_counter() - started)


def matrix_peak(kind: torch.dtype, side: int) -> float:
    """Return the operations per second of the fastest of several products of square matrices."""
    device = SingleProcessCommunicator().device
    left, right = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    best = math.inf
    for _ in range(ROUNDS + 2):
        started = time.perf_counter()
        for _ in range(UPDATES_PER_ROUND):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 * UPDATES_PER_ROUND / best


if __name__ == "__main__":
    main()
