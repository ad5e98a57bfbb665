"""The parametrizations of a model, and the sizes over which each carries the learning rate.

What they do to a model stands in :mod:`trainers.numerics.parametrization`.
"""

from __future__ import annotations

from collections.abc import Mapping

PARAMETRIZATIONS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "mup": ("width",),
    "completep": ("width", "depth"),
}
"""Directions over which the best rate stays, by name; the data options ``base_width``, ``base_depth`` begin them."""
