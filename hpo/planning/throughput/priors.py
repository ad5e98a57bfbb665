"""What is believed of the terms of a step before any measurement; learnt from published runs."""

from __future__ import annotations

from dataclasses import dataclass

from hpo.extrapolation.laws.priors import Normal


@dataclass(frozen=True)
class StepPriors:
    """Normal beliefs on the parameters of :mod:`hpo.planning.throughput.step_model`.

    Coefficients are natural logarithms, relative to the ideal computation of the smallest measured row. ``log_scatter``
    is the scatter of a configuration around the formula.
    """

    log_fixed: Normal
    fixed_logit: Normal
    log_intra: Normal
    log_inter: Normal
    log_latency: Normal
    log_straggler: Normal
    log_shared: Normal
    log_scatter: Normal


# what `python -m hpo.planning.throughput.learn` makes of the shipped table of published runs
PRIORS = StepPriors(log_fixed=Normal(-3.36, 1.62), fixed_logit=Normal(-0.85, 1.16), log_intra=Normal(-3.77, 1.56),
                    log_inter=Normal(-3.57, 1.92), log_latency=Normal(-5.28, 1.59), log_straggler=Normal(-5.28, 1.69),
                    log_shared=Normal(-8.37, 2.01), log_scatter=Normal(-4.06, 0.68))

# accelerators per node where nobody says: 8, as in most machines of the last years, give or take a factor of 1.7
LOG2_NODE_SIZE = Normal(3.0, 0.75)
