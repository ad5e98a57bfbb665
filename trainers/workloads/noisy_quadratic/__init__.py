"""A quadratic with noisy gradients: trainings whose truth is known at every batch size."""
