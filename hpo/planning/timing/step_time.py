"""The time of one update on a machine, from the figures of the machine and the workload alone.

::

    step = compute + exposed communication + control plane + stragglers + input stall

- compute: each micro batch launches its kernels and does its arithmetic at the share of the peak that training runs
  reach, so small micro batches are less efficient: ``m * seconds_per_tensor * tensors + b * flops / (peak * share)``.
- exposed communication: gradients become ready evenly over the back-propagation of the last micro batch, t_b, and are
  reduced in B buckets, each in T(n/B). The last bucket is always exposed: ``max(t_b / B + B T - t_b, T)``. B minimises
  this between n / fusion_bytes and one bucket per cycle. With gradient lag, communication overlaps with a whole step.
- control plane: one rank receives a message per tensor from all others (Horovod's coordinator, "flat") or from the r
  children of a tree (Kurth et al., arXiv:1810.01993, section V-A3), and replies.
- stragglers: all ranks wait for the slowest of p, ``E max`` of p normal times (Blom 1958; about sqrt(2 ln p)), and a
  share of the speed is lost with each doubling of the nodes for reasons that are not modelled.
- input stall: the time by which preparing the samples (reading them from storage, then decoding and augmenting them on
  the cores of the node) takes longer than the step that it overlaps. If the ranks compute on the same cores, the two
  alternate: the stall is the time by which all work of the cores, preparation and ranks, exceeds a step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.planning.machines import Machine
from hpo.planning.machines.machine import PRECISIONS
from hpo.planning.timing.assumptions import (
    BACKWARD_SHARE,
    CYCLE_SECONDS,
    RADIX,
    TimingAssumptions,
    assumption_values,
    normal_draws,
)
from hpo.planning.timing.collectives import (
    ALL_REDUCES,
    CollectiveLinks,
    RankLayout,
    all_reduce_seconds,
)
from search_spaces.names import did_you_mean
from trainers.cost import WorkloadCost

__all__ = ["StepOptions", "StepTime", "evaluation_time", "scaling_efficiency", "step_time"]

Array: TypeAlias = NDArray[np.float64]

CHOICES: Mapping[str, tuple[object, ...]] = {
    "all_reduce": ("auto", *ALL_REDUCES),
    "precision": PRECISIONS,
    "gradient_bytes": (2, 4),
    "gradient_lag": (0, 1),
    "control_plane": ("none", "flat", "tree"),
}


@dataclass(frozen=True)
class StepOptions:
    """The options of the time model: how a training run computes and communicates.

    ``all_reduce`` is described in :mod:`hpo.planning.timing.collectives`; "auto" is ring or tree, as NCCL chooses.
    ``gradient_bytes`` is the size of each communicated gradient, 2 for fp16. ``fusion_bytes`` is the largest bucket
    (Horovod's threshold). ``overlap`` means that gradients are reduced during the back-propagation. ``control_plane``
    is "flat" for Horovod's coordinator, "tree" for the one of Kurth et al. (Horovod's response cache, since 0.16, has
    the same order), or "none" for a fixed order of buckets as in torch.distributed. ``staged`` means that samples are
    on the nodes' own storage, if there is any.
    """

    all_reduce: str = "auto"
    precision: str = "fp32"
    gradient_bytes: int = 4
    fusion_bytes: float = 64 * 2.0**20
    overlap: bool = True
    gradient_lag: int = 0
    control_plane: str = "tree"
    staged: bool = True

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                words = ", ".join(map(str, allowed))
                raise PlanError(
                    f"{name} must be one of {words}, but got {value!r}"
                    f"{did_you_mean(str(value), [str(each) for each in allowed])}"
                )
        if not 0 < self.fusion_bytes < math.inf:
            raise PlanError(
                f"fusion_bytes must be a finite number above 0, but got {self.fusion_bytes}"
            )


@dataclass(frozen=True)
class StepTime:
    """Seconds of one update: the parts with all figures at their medians, and their sum ``total`` with a 90 % interval.

    ``communication`` is the time of all all-reduces; ``exposed_communication`` is the part that is not overlapped.
    ``limited_by`` is input if preparing the samples takes longer than everything else, as nothing else would then
    shorten the step; otherwise the largest part: compute, network (including stragglers) or control.
    """

    compute: float
    communication: float
    exposed_communication: float
    control: float
    input: float
    straggler: float
    total: Interval
    limited_by: str


@dataclass(frozen=True)
class _Figures:
    """Values of all uncertain figures, each of shape (1 + DRAWS,); the first is the median."""

    flops: Array
    links: CollectiveLinks
    seconds_per_tensor: Array
    message_seconds: Array
    step_variation: Array
    loss_per_doubling: Array
    storage_share: Array
    contention: Array
    core_speed: Array


def step_time(
    machine: Machine,
    cost: WorkloadCost,
    *,
    nodes: int,
    ranks_per_node: int,
    local_batch_size: int,
    micro_batch_size: int,
    options: StepOptions | None = None,
    assumptions: TimingAssumptions | None = None,
) -> StepTime:
    """Return the time of an update of ``local_batch_size`` samples per rank, in passes of at most ``micro_batch_size``.

    Raises :class:`PlanError` if the machine has too few nodes or accelerators, or if a size is below 1.
    """
    _check(machine, nodes, ranks_per_node, local_batch_size, micro_batch_size)
    parts = _parts(
        machine,
        cost,
        RankLayout(nodes, ranks_per_node, machine.inter_node.group_nodes),
        local_batch_size,
        min(micro_batch_size, local_batch_size),
        options or StepOptions(),
        assumptions or TimingAssumptions(),
    )
    waits = float(parts.pop("waits_for_input")[0])
    at_median = {name: float(values[0]) for name, values in parts.items()}
    shares = {
        "compute": at_median["compute"],
        "control": at_median["control"],
        "network": at_median["exposed_communication"] + at_median["straggler"],
    }
    return StepTime(
        **at_median,
        total=_interval(_total(parts)),
        limited_by="input" if waits else max(shares, key=lambda name: shares[name]),
    )


def evaluation_time(
    machine: Machine,
    cost: WorkloadCost,
    *,
    nodes: int,
    ranks_per_node: int,
    micro_batch_size: int,
    options: StepOptions | None = None,
    assumptions: TimingAssumptions | None = None,
) -> Interval:
    """Return the duration in seconds of one evaluation on ``cost.evaluation_samples``, split over the ranks.

    The time is that of the forward passes, or of the input if it is slower. A forward pass has a third of the
    arithmetic of a training pass; the all-reduce of a few numbers is neglected. The interval is all zeros if
    evaluations are not counted. Raises :class:`PlanError` in the same cases as :func:`step_time`.
    """
    _check(machine, nodes, ranks_per_node, 1, micro_batch_size)
    if not cost.evaluation_samples:
        return Interval(0.0, 0.0, 0.0)
    layout, options = RankLayout(nodes, ranks_per_node), options or StepOptions()
    figures = _figures(
        machine,
        machine.accelerator.computing_precision(options.precision),
        assumptions or TimingAssumptions(),
    )
    local = -(-cost.evaluation_samples // layout.ranks)
    passes = -(-local // micro_batch_size)
    compute = (1 - BACKWARD_SHARE) * _computing(cost, local, passes, figures)
    busy = compute + _straggling(compute, layout, figures)
    stall, _ = _input(machine, cost, layout, local, compute, busy, options, figures)
    return _interval(busy + stall)


def scaling_efficiency(
    machine: Machine,
    cost: WorkloadCost,
    *,
    nodes: int,
    ranks_per_node: int,
    base_nodes: int = 1,
    base_ranks_per_node: int = 1,
    local_batch_size: int,
    micro_batch_size: int,
    options: StepOptions | None = None,
    assumptions: TimingAssumptions | None = None,
) -> Interval:
    """Return the samples per second per rank, relative to the smaller base with the same local batch.

    Both use the same values of the uncertain figures, so that much of their spread cancels.
    """

    def totals(layout: RankLayout) -> Array:
        _check(machine, layout.nodes, layout.ranks_per_node, local_batch_size, micro_batch_size)
        return _total(
            _parts(
                machine,
                cost,
                layout,
                local_batch_size,
                min(micro_batch_size, local_batch_size),
                options or StepOptions(),
                assumptions or TimingAssumptions(),
            )
        )

    return _interval(
        totals(RankLayout(base_nodes, base_ranks_per_node, machine.inter_node.group_nodes))
        / totals(RankLayout(nodes, ranks_per_node, machine.inter_node.group_nodes))
    )


def expected_slowest(ranks: int) -> float:
    """Return the expected maximum of ``ranks`` standard normals (Blom 1958): ``Phi^-1((p - 0.375) / (p + 0.25))``.

    It is 0 for one rank, within 2 % of the exact value, and tends to sqrt(2 ln p).
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _parts(
    machine: Machine,
    cost: WorkloadCost,
    layout: RankLayout,
    local: int,
    micro: int,
    options: StepOptions,
    assumptions: TimingAssumptions,
) -> dict[str, Array]:
    figures = _figures(
        machine, machine.accelerator.computing_precision(options.precision), assumptions
    )
    passes = -(-local // micro)
    compute = _computing(cost, local, passes, figures)
    hidden_by = compute if options.gradient_lag else BACKWARD_SHARE * compute / passes
    whole, exposed = _communication(cost, layout, hidden_by, options, figures)
    control = _control(cost, layout, hidden_by, options, figures)
    straggler = _straggling(compute, layout, figures)
    busy = compute + exposed + control + straggler
    stall, waits = _input(machine, cost, layout, local, compute, busy, options, figures)
    return {
        "compute": compute,
        "communication": whole,
        "exposed_communication": exposed,
        "control": control,
        "input": stall,
        "straggler": straggler,
        "waits_for_input": waits,
    }


def _computing(cost: WorkloadCost, local: int, passes: int, figures: _Figures) -> Array:
    """Return the duration in seconds of a rank's forward and backward passes over ``local`` samples."""
    launching: Array = passes * figures.seconds_per_tensor * cost.gradient_tensors
    computing: Array = launching + local * cost.flops_per_sample / figures.flops
    return computing


def _straggling(compute: Array, layout: RankLayout, figures: _Figures) -> Array:
    """Return the seconds that all ranks wait for the slowest, plus the loss that grows with the nodes."""
    growth = np.exp2(-np.log2(1 - figures.loss_per_doubling) * math.log2(layout.nodes)) - 1
    waited: Array = (figures.step_variation * expected_slowest(layout.ranks) + growth) * compute
    return waited


def _input(
    machine: Machine,
    cost: WorkloadCost,
    layout: RankLayout,
    local: int,
    compute: Array,
    busy: Array,
    options: StepOptions,
    figures: _Figures,
) -> tuple[Array, Array]:
    """Return the stall in seconds after ``busy`` seconds of a step, and 1 if the input is the limit, else 0."""
    reading = _reading_seconds(machine, cost, layout, local, options) / figures.storage_share
    limits = reading > busy
    stall = np.maximum(reading - busy, 0.0)
    if machine.processor is not None:
        cores = machine.processor.cores_per_node
        host = local * layout.ranks_per_node * cost.host_seconds_per_sample / figures.core_speed
        of_a_rank = cores / machine.accelerators_per_node if machine.processor.computes else 0.0
        others = layout.ranks_per_node * of_a_rank * compute
        waited = np.maximum((host + others) / cores - busy, 0.0)
        limits = limits | ((waited > 0) & (host > others))
        stall = np.maximum(stall, waited)
    return stall, limits.astype(float)


def _communication(
    cost: WorkloadCost,
    layout: RankLayout,
    hidden_by: Array,
    options: StepOptions,
    figures: _Figures,
) -> tuple[Array, Array]:
    """Return the seconds that all buckets take, and the exposed part with the slowdown by hidden communication."""
    if layout.ranks == 1:
        return np.zeros_like(hidden_by), np.zeros_like(hidden_by)
    size = float(cost.parameters * options.gradient_bytes)
    fewest = math.ceil(size / options.fusion_bytes)
    at_most = max(
        fewest, min(cost.gradient_tensors, math.floor(float(hidden_by[0]) / CYCLE_SECONDS))
    )
    free = options.overlap and not options.gradient_lag
    buckets = np.array(
        [fewest * 2**k for k in range((at_most // fewest).bit_length())] if free else [fewest]
    )
    each = np.stack(
        [
            np.asarray(all_reduce_seconds(options.all_reduce, size / number, layout, figures.links))
            for number in buckets
        ]
    )
    whole = buckets[:, None] * each
    waited = _waited(whole, each, buckets[:, None], hidden_by, options)
    waited += figures.contention * (whole - waited)
    best = np.argmin(waited, axis=0)[None]
    return np.take_along_axis(whole, best, 0)[0], np.take_along_axis(waited, best, 0)[0]


def _control(
    cost: WorkloadCost,
    layout: RankLayout,
    hidden_by: Array,
    options: StepOptions,
    figures: _Figures,
) -> Array:
    """Return the seconds added by negotiating ready tensors in cycles, which overlaps with back-propagation."""
    if options.control_plane == "none" or layout.ranks == 1:
        return np.zeros_like(hidden_by)
    others = layout.ranks - 1
    flat = options.control_plane == "flat" or others <= RADIX
    messages = 2 * (others if flat else RADIX + 1)
    hops = 2 * (1 if flat else math.ceil(math.log(layout.ranks, RADIX)))
    latency = figures.links.message_between if layout.nodes > 1 else figures.links.message_in_node
    cycles = (
        max(1, min(cost.gradient_tensors, math.floor(float(hidden_by[0]) / CYCLE_SECONDS)))
        if options.overlap
        else 1
    )
    each = cost.gradient_tensors / cycles * messages * figures.message_seconds + hops * latency
    return _waited(cycles * each, each, np.array(cycles), hidden_by, options)


def _waited(
    whole: Array, each: Array, number: Array, hidden_by: Array, options: StepOptions
) -> Array:
    """Return how long after ``hidden_by`` the last of ``number`` jobs, which become ready evenly during it, ends."""
    if options.gradient_lag:
        return np.maximum(whole - hidden_by, 0.0)
    if not options.overlap:
        return whole.copy()
    waited: Array = np.maximum(hidden_by / number + whole - hidden_by, each)
    return np.minimum(waited, whole)


def _reading_seconds(
    machine: Machine, cost: WorkloadCost, layout: RankLayout, local: int, options: StepOptions
) -> float:
    """Return the seconds to read an update's samples at the rated speed, from each node's storage or shared storage."""
    if options.staged and machine.node_storage is not None:
        return (
            local
            * layout.ranks_per_node
            * cost.sample_bytes
            / machine.node_storage.read_bytes_per_second
        )
    return (
        local * layout.ranks * cost.sample_bytes / machine.shared_filesystem.read_bytes_per_second
    )


@functools.lru_cache(maxsize=16)
def _figures(machine: Machine, precision: str, assumptions: TimingAssumptions) -> _Figures:
    normal = iter(normal_draws().T)
    device = machine.accelerator
    share = np.minimum(assumption_values(device.achieved_fraction[precision], next(normal)), 1.0)
    values = {
        field.name: assumption_values(getattr(assumptions, field.name), next(normal))
        for field in dataclasses.fields(assumptions)
    }
    link_share, latency = np.minimum(values.pop("link_share"), 1.0), values.pop("latency_factor")
    inside, outside = machine.intra_node, machine.inter_node
    processor = machine.processor
    if processor is not None and processor.core_speed is not None:
        values["core_speed"] *= processor.core_speed / assumptions.core_speed.median
    links = CollectiveLinks(
        inside.latency_seconds * latency,
        1 / (inside.bandwidth_bytes_per_second * link_share),
        outside.latency_seconds * latency,
        1 / (outside.bandwidth_bytes_per_second * link_share),
        outside.oversubscription,
    )
    return _Figures(device.peak_flops[precision] * share, links, **values)


def _total(parts: Mapping[str, Array]) -> Array:
    total: Array = sum(
        (
            parts[name]
            for name in ("compute", "exposed_communication", "control", "input", "straggler")
        ),
        start=np.zeros(1),
    )
    return total


def _interval(values: Array) -> Interval:
    """Return the value at the medians of all figures, with the 5 % and 95 % quantiles, widened to contain it."""
    median, low, high = float(values[0]), *np.quantile(values[1:], (LEVELS[1], LEVELS[2]))
    return Interval(median, min(float(low), median), max(float(high), median))


def _check(
    machine: Machine, nodes: int, ranks_per_node: int, local_batch_size: int, micro_batch_size: int
) -> None:
    for name, value, most in (
        ("nodes", nodes, machine.nodes),
        ("ranks_per_node", ranks_per_node, machine.accelerators_per_node),
    ):
        if not 1 <= value <= most:
            raise PlanError(
                f"{name} must be between 1 and {most:,} on {machine.name}, but got {value:,}; "
                f"the nearest is {min(max(value, 1), most):,}"
            )
    for name, value in (
        ("local_batch_size", local_batch_size),
        ("micro_batch_size", micro_batch_size),
    ):
        if value < 1:
            raise PlanError(f"{name} must be at least 1 sample, but got {value}")
