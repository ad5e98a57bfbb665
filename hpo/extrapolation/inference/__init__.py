"""Priors, the model and the sampler of its posterior."""
