"""How epochs to target and the best settings change with the batch size."""
