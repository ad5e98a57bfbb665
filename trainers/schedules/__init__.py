"""The learning rate and the batch size over the course of training, and the rules that adapt them."""
