"""NSGA-II (Deb et al., IEEE Transactions on Evolutionary Computation 6, 2002), from Optuna, as a study sampler."""

from optuna.samplers import BaseSampler, NSGAIISampler


def genetic(seed: int) -> BaseSampler:
    """Create the sampler of one rung, with generations small enough for a small sweep."""
    return NSGAIISampler(seed=seed, population_size=4)
