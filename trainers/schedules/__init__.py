"""Learning rate and batch size over the course of a training, and the rules that adapt them."""
