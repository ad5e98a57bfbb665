"""New databases of either kind, as many as a test needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.private_postgres import PrivatePostgres


@pytest.fixture
def new_postgres_url(postgres: PrivatePostgres) -> Iterator[Callable[[], str]]:
    """Each call makes a database without tables and returns its URL."""
    names: list[str] = []

    def new() -> str:
        names.append(postgres.new_database())
        return postgres.url(names[-1])

    yield new
    for name in names:
        postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Each call returns the URL of an empty database; the test runs on SQLite and on PostgreSQL."""
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("new_postgres_url")
        return make
    numbers = itertools.count()
    return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
