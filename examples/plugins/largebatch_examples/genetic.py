"""NSGA-II (Deb et al., IEEE Transactions on Evolutionary Computation 6, 2002), from Optuna, as a study's sampler."""

from optuna.samplers import BaseSampler, NSGAIISampler


def genetic(seed: int) -> BaseSampler:
    """A rung's sampler: each of its generations has as many trainings as a small sweep can afford."""
    return NSGAIISampler(seed=seed, population_size=4)
