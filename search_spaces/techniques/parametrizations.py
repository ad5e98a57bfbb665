"""The parametrizations of a model, and the sizes over which each transfers the learning rate.

:mod:`trainers.numerics.parametrization` applies them to a model.
"""

from __future__ import annotations

from collections.abc import Mapping

MODEL_SIZES = ("width", "depth")
"""The sizes in which a model may grow; they are custom settings and data options of workloads that support them."""

PARAMETRIZATIONS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "mup": ("width",),
    "completep": ("width", "depth"),
}
"""The sizes over which each keeps the best learning rate constant, relative to ``base_width`` and ``base_depth``."""
