"""Selects which of a framework's metrics are reported, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo.callbacks.reporting import report

_PROGRESS = ("epochs", "samples", "steps")


def report_metrics(
    found: Mapping[str, Any],
    wanted: Mapping[str, str] | None,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    prefix: str = "",
) -> None:
    """Report the ``found`` metrics that are numbers, after ``epochs`` or ``steps`` (updates).

    ``wanted`` maps the study's names to the framework's; other metrics are left out. Without it, every metric is
    reported under its own name, with ``prefix`` removed.
    """
    if wanted is not None:
        chosen = {mine: found[theirs] for mine, theirs in wanted.items() if theirs in found}
    else:
        chosen = {name.removeprefix(prefix): value for name, value in found.items()}
    numbers = {
        name: value for name, value in chosen.items() if name not in _PROGRESS and _is_number(value)
    }
    report(epochs=epochs, steps=steps, **numbers)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str)
