"""Plug-ins: found without an import, imported when used, and refused with one line that names package and reason."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from search_spaces.plugins import TAKEN, PluginError, PluginRegistry, installed
from tests.fake_package import install_package

GROUP = "largebatch.optimizers"
_numbers = itertools.count()


def _number(name: str, thing: object) -> int:
    if not isinstance(thing, int):
        raise TypeError(f"{name} must be a whole number, but got {thing!r}")
    return thing


@pytest.fixture
def registry() -> PluginRegistry[int]:
    return PluginRegistry("optimizers", {"known": 1}, _number)


def _install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    entries: dict[str, str],
    text: str = "",
    package: str = "some-package",
) -> str:
    """A package whose entry points have ``@`` for its module; the module's name, which no other test has."""
    module = f"plugin_module_{next(_numbers)}"
    entries = {name: value.replace("@", module) for name, value in entries.items()}
    install_package(monkeypatch, folder, package, {GROUP: entries}, {f"{module}.py": text})
    return module


def test_a_plug_in_stands_beside_the_known_names_and_is_imported_when_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int]
) -> None:
    module = _install(monkeypatch, tmp_path, {"tiger": "@:TIGER"}, "TIGER = 7")
    assert list(registry) == ["known", "tiger"]
    assert "tiger" in registry and len(registry) == 2 and ["tiger"] not in [*registry]
    assert module not in sys.modules
    assert registry["known"] == 1 and module not in sys.modules
    assert registry["tiger"] == 7 and module in sys.modules
    assert registry.faults() == []
    (plugin,) = registry.plugins()
    assert str(plugin) == "tiger (largebatch.optimizers) of the package some-package 1.0"


def test_another_kind_does_not_see_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _install(monkeypatch, tmp_path, {"tiger": "@:TIGER"}, "TIGER = 7")
    assert list(PluginRegistry("samplers", {"known": 1}, _number)) == ["known"]
    assert [plugin.name for plugin in installed() if plugin.package == "some-package"] == ["tiger"]


@pytest.mark.parametrize(
    ("entries", "text", "reason"),
    [
        ({"tiger": "@:TIGER"}, "import no_such_module", "ModuleNotFoundError: No module named"),
        ({"tiger": "@:TIGER"}, "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ({"tiger": "@:TIGER"}, "", "cannot be imported: AttributeError"),
        ({"tiger": "@:TIGER"}, "def (", "cannot be imported: SyntaxError"),
        ({"tiger": "@:TIGER"}, "TIGER = 'x'", "breaks the contract of its kind: tiger must be a"),
    ],
)
def test_one_that_cannot_be_used_is_one_line_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    registry: PluginRegistry[int],
    entries: dict[str, str],
    text: str,
    reason: str,
) -> None:
    _install(monkeypatch, tmp_path, entries, text)
    assert registry["known"] == 1
    with pytest.raises(PluginError, match=reason) as caught:
        registry["tiger"]
    assert "some-package 1.0" in str(caught.value) and "\n" not in str(caught.value)
    assert [str(fault) for fault in registry.faults()] == [str(caught.value)]


def test_a_known_name_stays_the_project_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int]
) -> None:
    module = _install(monkeypatch, tmp_path, {"known": "@:TIGER"}, "TIGER = 7")
    assert registry["known"] == 1 and list(registry) == ["known"]
    (fault,) = registry.faults()
    assert (
        "known (largebatch.optimizers) of the package some-package 1.0 uses the name of a built-in"
        in str(fault)
    )
    assert module not in sys.modules


def test_a_name_that_two_packages_claim_is_neither_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int]
) -> None:
    for package in ("one", "two"):
        _install(monkeypatch, tmp_path, {"tiger": "@:TIGER"}, "TIGER = 7", package)
    assert list(registry) == ["known"]
    with pytest.raises(PluginError, match="uses a name that two uses too"):
        registry["tiger"]
    monkeypatch.setenv(TAKEN, "two")
    assert registry["tiger"] == 7


@pytest.mark.parametrize("name", ["Tiger", "big tiger", "1st", "a-b"])
def test_a_name_must_be_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int], name: str
) -> None:
    _install(monkeypatch, tmp_path, {name: "@:TIGER"}, "TIGER = 7")
    assert list(registry) == ["known"]
    (fault,) = registry.faults()
    assert "must have a name of lowercase letters" in str(fault)


def test_only_packages_that_are_named_are_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int]
) -> None:
    module = _install(monkeypatch, tmp_path, {"tiger": "@:TIGER"}, "TIGER = 7", "Some.Package")
    monkeypatch.setenv(TAKEN, "")
    assert list(registry) == ["known"]
    with pytest.raises(PluginError, match="is not among the plug-ins that this service accepts"):
        registry["tiger"]
    assert "can add Some.Package to plugins in the configuration" in registry.explain("tiger")
    assert module not in sys.modules
    monkeypatch.setenv(TAKEN, "other, some-package")
    assert registry["tiger"] == 7


def test_a_mistyped_name_is_explained_by_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: PluginRegistry[int]
) -> None:
    _install(monkeypatch, tmp_path, {"tiger": "@:TIGER"}, "TIGER = 7")
    assert registry.explain("tigre") == "; did you mean 'tiger'?"
    assert registry.explain("zzz") == "" == registry.explain([1])
    with pytest.raises(KeyError):
        registry["tigre"]
