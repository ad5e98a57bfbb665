"""The PyTorch training loop: its data, its gradients and its state on disk."""
