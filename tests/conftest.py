"""A private PostgreSQL for the tests that need one: started with the first of them, stopped with the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.private_postgres import PrivatePostgres, private_postgres
from storage.store import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A server for the whole run, or a skip where there is none."""
    pytest.importorskip("pgserver", reason="PostgreSQL comes with the wheel: pip install pgserver",
                        exc_type=ImportError)
    with private_postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PrivatePostgres) -> str:
    """A database with our tables, to be copied: a copy takes a tenth of the time of making them."""
    name = postgres.new_database()
    Store.open(postgres.url(name)).close()
    return name


@pytest.fixture
def postgres_url(postgres: PrivatePostgres, postgres_template: str) -> Iterator[str]:
    """The URL of a new database with our tables."""
    name = postgres.new_database(postgres_template)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def empty_postgres_url(postgres: PrivatePostgres) -> Iterator[str]:
    """The URL of a new database without tables."""
    name = postgres.new_database()
    yield postgres.url(name)
    postgres.drop(name)
