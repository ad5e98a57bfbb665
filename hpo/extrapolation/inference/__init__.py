"""The model, the sampler of its posterior, and the intervals that it gives."""
