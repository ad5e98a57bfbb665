"""The Store keeps to its contract: the same methods with the same arguments, each of them described there."""

from __future__ import annotations

import inspect

import pytest

from storage.contract import AbstractStore
from storage.store import Store

PROMISED = sorted(AbstractStore.__abstractmethods__)


def test_all_that_is_public_of_the_store_is_promised() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")}
    assert public - {"open"} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_a_promise_is_described_and_kept(name: str) -> None:
    promised, kept = (
        inspect.getattr_static(AbstractStore, name),
        inspect.getattr_static(Store, name),
    )
    assert promised.__doc__
    if not isinstance(promised, property):
        assert inspect.signature(kept) == inspect.signature(promised)
    assert inspect.getdoc(getattr(Store, name)) == inspect.cleandoc(promised.__doc__)


def test_a_store_that_breaks_a_promise_cannot_be_made() -> None:
    class Forgetful(AbstractStore):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Forgetful()  # type: ignore[abstract]
