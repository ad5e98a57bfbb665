"""The priors on throughput, learnt from published runs."""

from __future__ import annotations

from dataclasses import dataclass

from hpo.extrapolation.laws.priors import NormalPrior


@dataclass(frozen=True)
class StepPriors:
    """Normal priors on the parameters of :mod:`hpo.planning.throughput.step_model`.

    Coefficients are natural logarithms, relative to the ideal computation of the smallest measured row. ``log_scatter``
    is the scatter of a configuration around the formula.
    """

    log_fixed: NormalPrior
    fixed_logit: NormalPrior
    log_intra: NormalPrior
    log_inter: NormalPrior
    log_latency: NormalPrior
    log_straggler: NormalPrior
    log_shared: NormalPrior
    log_scatter: NormalPrior


@dataclass(frozen=True)
class WalkPriors:
    """Natural logarithms of the standard deviations in :mod:`hpo.planning.throughput.linear`.

    The first two apply to log samples per second per accelerator, for a change of 1 in log accelerators or in log local
    batch; the third is the scatter of a configuration.
    """

    log_accelerators: float
    log_local_batch: float
    log_scatter: float


@dataclass(frozen=True)
class ThroughputPriors:
    """The priors of the step model and of linear scaling, with the prior weight of linear scaling."""

    step: StepPriors
    walk: WalkPriors
    linear_share: float = 0.12


# learnt by `python -m benchmarks.throughput.learn` from a table of published runs
PRIORS = ThroughputPriors(
    StepPriors(
        log_fixed=NormalPrior(-3.37, 1.64),
        fixed_logit=NormalPrior(-0.86, 1.16),
        log_intra=NormalPrior(-3.73, 1.54),
        log_inter=NormalPrior(-3.60, 2.05),
        log_latency=NormalPrior(-5.56, 1.59),
        log_straggler=NormalPrior(-5.63, 1.67),
        log_shared=NormalPrior(-8.87, 2.01),
        log_scatter=NormalPrior(-4.09, 0.67),
    ),
    WalkPriors(-1.83, -1.61, -3.69),
)

# log2 of the accelerators per node if their number is unknown: 8 within a factor of about 1.7, as in most recent
# machines, or, for a share of the machines, hundreds in one network (TPU pods, racks with one NVLink domain)
LOG2_NODE_SIZE = NormalPrior(3.0, 0.75)
LOG2_POD_SIZE = NormalPrior(8.0, 3.0)
POD_SHARE = 0.1
