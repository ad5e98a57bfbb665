"""How workers may be started and how sums may travel between them: names alone, so that nothing loads PyTorch."""

from __future__ import annotations

BACKENDS = ("single", "horovod", "torch")
"""Started by nobody, by horovodrun or MPI, or by torchrun."""

ALL_REDUCES = ("default", "torus", "hierarchical", "masters")
"""The backend's own way, a 2D torus, within the nodes and then between them, or by one master a node."""
