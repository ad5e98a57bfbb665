"""The parametrizations of a model, and the sizes over which each carries the learning rate.

:mod:`trainers.numerics.parametrization` applies them to a model.
"""

from __future__ import annotations

from collections.abc import Mapping

MODEL_SIZES = ("width", "depth")
"""In what a model may grow: settings of one's own, and data options of the workloads that know them."""

PARAMETRIZATIONS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "mup": ("width",),
    "completep": ("width", "depth"),
}
"""Directions over which the best rate stays, by name; the data options ``base_width``, ``base_depth`` begin them."""
