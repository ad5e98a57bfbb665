"""A quadratic with noisy gradients, for training runs whose true optimum is known at every batch size."""
