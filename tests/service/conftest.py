"""A database in a folder in which workers run."""

import pytest

from storage.store import Store


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A database in a folder where the workers run."""
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/hpo.db"


@pytest.fixture
def store(url):
    with Store.open(url) as store:
        yield store
