"""An installed package for a test: its metadata with entry points, and its module, in a folder on the path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from search_spaces.plugins import TAKEN


def install_package(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str],
) -> Path:
    """Put a package on the path as pip would: ``entry_points`` by group and name, ``modules`` by file name.

    Packages accepted by a service of an earlier test are forgotten. Returns the folder that is on the path; that folder
    may hold several packages.
    """
    site = folder / f"site_{name}"
    metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in entry_points.items()
        )
    )
    for file, text in modules.items():
        (site / file).write_text(text)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv(TAKEN, raising=False)
    return site
