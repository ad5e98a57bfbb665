"""A database and its backups are readable only by their user."""

import pytest

from storage.maintenance import maintenance
from storage.records import NewStudy
from storage.store import Store


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize(("mask", "mode"), [(None, 0o600), ("027", 0o640), ("022", 0o644)])
def test_a_new_database_is_its_user_s_alone_unless_said_otherwise(
    tmp_path, monkeypatch, mask, mode
):
    if mask is None:
        monkeypatch.delenv("HPO_UMASK", raising=False)
    else:
        monkeypatch.setenv("HPO_UMASK", mask)
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        store.create_study(
            NewStudy(
                name="a",
                workload="w",
                metric="loss",
                threshold=1.0,
                higher_is_better=False,
                spec="name: a",
            )
        )
        assert set(modes(tmp_path).values()) == {mode}  # the journal beside it too


def test_backups_are_their_user_s_alone(tmp_path):
    url = f"sqlite:///{tmp_path}/hpo.db"
    Store.open(url).close()
    for name in ("copy.db", "archive.zip"):
        maintenance.backup(url, tmp_path / name)
        assert modes(tmp_path)[name] == 0o600
