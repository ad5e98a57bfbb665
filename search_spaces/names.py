"""Hints at the end of an error about an unknown name: the closest known name, or all known names.

All packages use these functions except ``storage``, which imports no other package and has its own in
``storage.errors``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 200
"""The length of the longest name that is compared; comparison time grows with the square of the length."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'budget'?`` for the known name closest to ``name``, or "" if none is close."""
    if len(name) > LONGEST:
        return ""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Return the hint of :func:`did_you_mean`, or ``; the choices are adam, lars, sgd`` if no known name is close."""
    known = sorted(known)
    return did_you_mean(name, known) or f"; the choices are {', '.join(known)}"
