"""Learning rate and batch size over a training, and what adapts them."""
