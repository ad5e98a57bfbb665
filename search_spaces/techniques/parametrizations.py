"""The parametrizations of a model, and the sizes over which each transfers the learning rate.

:mod:`trainers.numerics.parametrization` applies them to a model.
"""

from __future__ import annotations

from collections.abc import Mapping

MODEL_SIZES = ("width", "depth")
"""The sizes in which a model may grow: custom settings, and data options of the workloads that support them."""

PARAMETRIZATIONS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "mup": ("width",),
    "completep": ("width", "depth"),
}
"""Directions over which the best rate stays constant, by name; ``base_width``, ``base_depth`` are their base sizes."""
