"""A quadratic with noisy gradients: trainings whose true optimum is known at every batch size."""
