"""The priors: a few numbers, learned from published reference points.

Every prior is normal in the coordinate given by its name. ``log_critical_over_first`` is the log ratio of
the critical batch size to the smallest rung of the ladder: people start their ladders where scaling is
perfect, and the distance of that start from the critical batch size is similar across workloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NormalPrior:
    """A normal prior: its mean and standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True)
class AdamPriors:
    """Priors for the law of Adam and AdamW (``adam_law``), in natural logarithms except for exponent, fall and follow.

    The defaults are what ``python -m benchmarks.adamw_grids dense.csv --learn`` learns from eight published grids of
    learning rate by batch size for AdamW on dense language models (run tables of step-law/steplaw, arXiv:2503.04715).
    As all grids come from one kind of workload, the prior on the distance of N from the batch size with the fewest
    epochs is wider (1.5) than the grids suggest (0.44): on images (digits), the best rate keeps growing for longer.
    """

    growth_log_sharpness: NormalPrior = NormalPrior(0.22, 0.20)
    growth_log_exponent: NormalPrior = NormalPrior(-0.11, 0.14)
    log_low_over_critical: NormalPrior = NormalPrior(-2.95, 0.79)
    log_low_power: NormalPrior = NormalPrior(-0.21, 0.23)
    exponent: NormalPrior = NormalPrior(0.74, 0.16)
    log_noise_over_best_batch: NormalPrior = NormalPrior(-0.01, 1.50)
    log_sharpness: NormalPrior = NormalPrior(0.40, 0.34)
    fall: NormalPrior = NormalPrior(0.03, 0.08)
    log_below: NormalPrior = NormalPrior(-0.84, 0.37)
    log_above: NormalPrior = NormalPrior(-0.03, 0.34)
    log_round: NormalPrior = NormalPrior(0.09, 0.57)
    log_margin: NormalPrior = NormalPrior(0.37, 0.47)
    follow: NormalPrior = NormalPrior(-2.36, 1.31)
    log_divergence_width: NormalPrior = NormalPrior(-2.09, 0.58)


@dataclass(frozen=True)
class LawPriors:
    """Priors for the law of the epochs and for the scatter around it, in natural logarithms.

    The defaults are what ``python -m benchmarks.extrapolation.learn`` learns from published reference points.
    """

    log_critical_over_first: NormalPrior = NormalPrior(2.73, 1.70)
    log_sharpness: NormalPrior = NormalPrior(0.20, 0.23)
    log_exponent: NormalPrior = NormalPrior(-0.15, 0.12)
    log_recipe_scatter: NormalPrior = NormalPrior(-3.07, 0.40)
    adam: AdamPriors = field(default_factory=AdamPriors)
