"""Each public method of the Store documents what it promises."""

from __future__ import annotations

import inspect

import pytest

from storage.store import Store

PUBLIC = sorted(name for name in dir(Store) if not name.startswith("_"))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_promise_is_described(name: str) -> None:
    assert inspect.getattr_static(Store, name).__doc__


def test_the_promises_are_those_of_studies_queue_and_service() -> None:
    assert {"create_study", "claim_study", "add_event", "close", "url"} <= {*PUBLIC}
