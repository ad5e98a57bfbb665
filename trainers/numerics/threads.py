"""How many threads a process computes with."""

import sys


def use_threads(count: int) -> None:
    """Compute with ``count`` threads; nothing where torch is not loaded, which not every workload needs."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)
