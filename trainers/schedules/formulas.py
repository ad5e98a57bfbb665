"""Look up the formula of a schedule by the setting that selects it."""

from __future__ import annotations

import functools
from typing import Any

from search_spaces.plugins import load_attribute
from search_spaces.settings import TrainingSettings
from search_spaces.techniques import TECHNIQUES
from trainers.errors import JobError


def chosen_formula(setting: str, settings: TrainingSettings) -> Any:
    """Return the rule named in the description of the chosen ``decay``, ``warmup_shape`` or ``batch_control``.

    Raises :class:`JobError` if the rule cannot be imported.
    """
    return formula_named(setting, getattr(settings, setting))


def formula_named(setting: str, name: str) -> Any:
    """Return the formula of the technique with this name."""
    return _imported(setting, name, TECHNIQUES[setting][name].rule)


@functools.cache
def _imported(setting: str, name: str, reference: str) -> Any:
    try:
        return load_attribute(reference)
    except Exception as error:
        raise JobError(
            f"the rule of {setting} {name!r}, {reference}, cannot be imported: {type(error).__name__}: {error}"
        ) from error
