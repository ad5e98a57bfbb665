"""Learning rate and batch size over a training, and the rules that adapt them."""
