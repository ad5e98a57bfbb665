"""The training loop in PyTorch: its data, its gradients, its state on disk."""
