"""The model, the sampler of its posterior, and the resulting intervals."""
