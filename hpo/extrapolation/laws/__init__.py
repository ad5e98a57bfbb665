"""How epochs to target and the best settings move with the batch size."""
