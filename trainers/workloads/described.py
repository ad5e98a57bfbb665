"""The workloads that a study may name, each with the properties that are known before its data are opened.

The class that ``rule`` names implements the workload. ``hpo init``, services, ``hpo doctor`` and tests use these
descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from search_spaces.plugins import PluginError, PluginRegistry, plugin_instance_of


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The entries that ``hpo init`` writes for a workload, as a starting point.

    Attributes:
        about: what is trained, in a short phrase. data: the section ``data`` of the study file, as text; ``METRIC``
        stands for the target's metric and ``BETTER`` for whether a higher value is better. target: in the form
        ``top1>=0.76``. optimizer: its name. learning_rate: the lowest and the highest value tried. warmup_epochs: the
        largest value tried, 0 for no warmup. fixed: other settings. epochs: the maximum per run. others: whether any
        other optimizer may be named.
    """

    about: str
    data: str
    target: str
    optimizer: str = "sgd"
    learning_rate: tuple[float, float] = (0.003, 3)
    warmup_epochs: float = 5
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"momentum": 0.9})
    epochs: int = 40
    others: bool = True


@dataclass(frozen=True)
class ServiceDemand:
    """A study's demand on a service: an amount that an option of the study sets, and the service limit that applies."""

    place: tuple[str, str]
    amount: float
    limit: Literal["train_samples", "modes", "updates", "generated_bytes"]
    what: str = ""


def _no_demands(
    data: Mapping[str, Any],  # noqa: ARG001
    epochs: float,  # noqa: ARG001
    smallest_batch: int,  # noqa: ARG001
) -> Iterable[ServiceDemand]:
    return ()


@dataclass(frozen=True, kw_only=True)
class WorkloadDescription:
    """A workload; ``about`` is a short phrase for what is trained, ``source`` is the publication it is based on.

    Attributes:
        rule: its class, ``module:Class``, a subclass of :class:`trainers.workloads.AnyWorkload`; imported on first use.
        beginnings: the starting points that ``hpo init`` offers, by name. needs_torch: whether opening the workload
        requires torch. served: whether services train it if their configuration names no workloads. writes: data
        options that name a folder to be written; they cannot be set on a service. demands: a study's demands on a
        service besides its trials, computed from its data section, the epochs per run and the smallest batch size.
        grows: model sizes that may vary over a ladder, as data options, or as the options that ``size_options`` name.
        sample_flops: operations per sample, forward and backward, as a function of the data section, if they do not
        simply grow as the square of the width.
    """

    rule: str
    about: str
    source: str
    beginnings: Mapping[str, Beginning] = field(default_factory=dict)
    needs_torch: bool = True
    served: bool = True
    writes: tuple[str, ...] = ()
    demands: Callable[[Mapping[str, Any], float, int], Iterable[ServiceDemand]] = _no_demands
    grows: tuple[str, ...] = ()
    size_options: Mapping[str, str] = field(default_factory=dict)
    sample_flops: Callable[[Mapping[str, Any]], float] | None = None

    def size_option(self, size: str) -> str:
        """Return the data option for a model size: its own name, or another if that name has a different meaning."""
        return self.size_options.get(size, size)

    def __post_init__(self) -> None:
        if not all(self.rule.partition(":")):
            raise ValueError(f"rule must be 'package.module:Class', but got {self.rule!r}")


def _number(value: Any) -> float:
    """Convert a value in a data section to a float, or to 0 if it is not a number; the workload itself checks it."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else 0.0


def _of_decoder(data: Mapping[str, Any]) -> float:
    """Return the operations per sample: 6 per matrix weight and position, and 12 n^2 width per layer for attention
    (Kaplan et al. 2020, arXiv:2001.08361, section 2.1, with the output over 256 bytes and attention's backward pass).
    """
    usual = {"width": 64, "depth": 2, "sequence_length": 128}
    width, depth, length = (
        _number(data.get(name)) or float(value) for name, value in usual.items()
    )
    matrices = 12 * depth * width**2 + 256 * width
    return 6 * matrices * length + 12 * depth * length**2 * width


def _simulated(
    data: Mapping[str, Any], epochs: float, smallest_batch: int
) -> Iterator[ServiceDemand]:
    samples = _number(data.get("train_samples", 4096))
    yield ServiceDemand(("data", "train_samples"), samples, "train_samples")
    yield ServiceDemand(("data", "modes"), _number(data.get("modes", 1)), "modes")
    yield ServiceDemand(
        ("budget", "epochs_per_trial"),
        epochs * samples / smallest_batch,
        "updates",
        " updates of a trial at the smallest rung",
    )


def _generated(
    data: Mapping[str, Any],
    epochs: float,  # noqa: ARG001
    smallest_batch: int,  # noqa: ARG001
) -> Iterator[ServiceDemand]:
    if data.get("source", "generated") != "generated":
        return
    usual = {"height": 96, "width": 144, "samples": 256, "evaluation_samples": 64}
    size = {name: _number(data.get(name, value)) for name, value in usual.items()}
    samples = size["samples"] + size["evaluation_samples"]
    bytes_of_a_pixel = 4 * 16 + 1  # 16 channels in single precision, and a label
    generated = samples * size["height"] * size["width"] * bytes_of_a_pixel
    place = ("data", "samples")
    yield ServiceDemand(place, samples, "train_samples", " samples to generate")
    yield ServiceDemand(place, generated, "generated_bytes", " bytes of generated data")


WORKLOADS: PluginRegistry[WorkloadDescription] = PluginRegistry(
    "workloads",
    {
        "resnet": WorkloadDescription(
            rule="trainers.workloads.resnet.task:ResNetWorkload",
            grows=("width",),
            about="residual networks on images",
            source="He et al., arXiv:1512.03385",
            beginnings={
                "digits": Beginning(
                    about="small images from scikit-learn, to try things out",
                    data="data: {source: digits}",
                    target="top1>=0.96",
                ),
                "images": Beginning(
                    about="a residual network on images in folders train/CLASS/*.jpg and "
                    "val/CLASS/*.jpg",
                    data="data: {source: image_folder, path: images}       "
                    "# the folder with train/ and val/, beside this file",
                    target="top1>=0.75",
                    epochs=60,
                ),
            },
        ),
        "segmentation": WorkloadDescription(
            rule="trainers.workloads.segmentation.task:SegmentationWorkload",
            grows=("width",),
            size_options={"width": "model_width"},  # in the data options, width is the grid's
            about="DeepLabv3+ or Tiramisu on climate fields",
            source="Kurth et al., arXiv:1810.01993",
            writes=("folder",),
            demands=_generated,
            beginnings={
                "climate": Beginning(
                    about="segmentation of climate fields, generated or in DeepCAM's HDF5 format",
                    data="data: {source: generated, samples: 256, evaluation_samples: 64, height: 48, width: 72,\n"
                    "       model: deeplabv3plus_small, prior_bias: true}",
                    target="iou>=0.77",
                    optimizer="adam",
                    learning_rate=(0.0003, 0.03),
                    warmup_epochs=2,
                    fixed={"class_weighting": "inverse_eighth_root"},
                    epochs=24,
                )
            },
        ),
        "language": WorkloadDescription(
            rule="trainers.workloads.language.task:LanguageWorkload",
            grows=("width", "depth"),
            sample_flops=_of_decoder,
            about="a decoder-only transformer on the bytes of texts",
            source="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
            beginnings={
                "language": Beginning(
                    about="a small language model, on Python's own sources or on your texts",
                    data="data: {source: python, sequence_length: 64, train_samples: 4096, width: 32, depth: 2}",
                    target="bits_per_byte<=3.6",
                    optimizer="adamw",
                    learning_rate=(0.0003, 0.1),
                    warmup_epochs=2,
                    fixed={},
                    epochs=12,
                )
            },
        ),
        "noisy_quadratic": WorkloadDescription(
            rule="trainers.workloads.noisy_quadratic.task:NoisyQuadratic",
            about="a quadratic with noisy gradients, simulated in closed form",
            source="Zhang et al., arXiv:1907.04164",
            needs_torch=False,
            demands=_simulated,
            beginnings={
                "simulation": Beginning(
                    about="a noisy quadratic, simulated in seconds, to see how everything works",
                    data="data: {modes: 200, noise_scale: 0.5, train_samples: 512}",
                    target="loss<=0.05",
                    learning_rate=(0.002, 2),
                    warmup_epochs=0,
                    fixed={"momentum": 0.9, "weight_decay": 0},
                    epochs=80,
                    others=False,
                )
            },
        ),
        "program": WorkloadDescription(
            rule="trainers.workloads.program.task:ProgramWorkload",
            about="your own training program, started by its command line",
            source="docs/guides/programs.md",
            needs_torch=False,
            served=False,
            beginnings={
                "program": Beginning(
                    about="your own training program: anything with a command line",
                    data="program:\n"
                    "  # the words of your command; {name} is a setting, a batch size or a place: see guides/programs\n"
                    '  command: [python, train.py, --lr, "{learning_rate}", --warmup, "{warmup_epochs}",\n'
                    '            --batch-size, "{local_batch_size}", --seed, "{seed}"]\n'
                    "  train_samples: 50000              # size of your training set: the unit "
                    "of an epoch\n"
                    "  report: {metrics: {METRIC: BETTER}}   # what your program reports; true: higher is better",
                    target="accuracy>=0.9",
                    fixed={},
                )
            },
        ),
    },
    plugin_instance_of(WorkloadDescription),
)


def described_workload(name: str) -> WorkloadDescription | None:
    """Return the description of a workload; None if it is a user's class or unknown, or its plug-in cannot be used.

    Opening the workload (:func:`trainers.workloads.workload_class`) reports the reason.
    """
    try:
        return WORKLOADS.get(name)
    except PluginError:
        return None


def workloads_that_grow(size: str) -> list[str]:
    """Return the workloads whose models may grow in a size, without faulty plug-ins."""
    described = {name: described_workload(name) for name in WORKLOADS}
    return [name for name, its in described.items() if its is not None and size in its.grows]
