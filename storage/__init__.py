"""The store of studies, trials, convergence, forecasts, plans and outcomes, in SQLite or PostgreSQL.

:class:`Store` opens a database and documents its guarantees, ``storage.records`` defines the values that it takes and
returns, and ``storage.errors`` defines the errors. Only the names in ``__all__`` and these two modules are public; all
other modules are internal and may change. The names in ``__all__`` are loaded on first use, so that importing
``storage.records`` alone does not import SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.errors import (
        Conflict,
        InvalidRecord,
        LeaseLost,
        NotFound,
        SchemaTooNew,
        StoreError,
        StoreUnavailable,
    )
    from storage.store import Store

__all__ = [
    "Conflict",
    "InvalidRecord",
    "LeaseLost",
    "NotFound",
    "SchemaTooNew",
    "Store",
    "StoreError",
    "StoreUnavailable",
]

_HOMES = {"Store": "storage.store"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'storage' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "storage.errors")), name)


def __dir__() -> list[str]:
    return __all__
