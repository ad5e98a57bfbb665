"""The training loop on PyTorch: its data, its gradients, its state on disk."""
