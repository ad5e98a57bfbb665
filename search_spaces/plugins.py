"""Plug-ins: optimizers, schedules, samplers and more from third-party packages, found through entry points.

A package declares its plug-ins in its pyproject.toml, and they are found wherever the package is installed::

    [project.entry-points."largebatch.optimizers"]
    tiger = "my_package.tiger:TIGER"

Names are read from the metadata of installed packages; a plug-in's module is imported when its name is first used. A
faulty plug-in is reported in one line (:class:`PluginError`) that names its package, and it affects nothing that does
not use it.

The environment variable ``HPO_PLUGINS`` lists the packages whose plug-ins are accepted, separated by commas; if it is
unset, all packages are accepted; if it is empty, no package is accepted. A server sets it for itself and its child
processes according to its configuration.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

Kind = Literal[
    "optimizers", "schedules", "samplers", "schedulers", "workloads", "importers", "trackers"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

PREFIX = "largebatch."
"""Prefix of the entry-point group of each kind."""

TAKEN = "HPO_PLUGINS"
"""The environment variable that lists the packages whose plug-ins are accepted."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
Thing = TypeVar("Thing")


class PluginError(ValueError):
    """Error for a plug-in that cannot be used: one line with its kind, name and package and the reason."""


@dataclass(frozen=True)
class Plugin:
    """One entry point: ``value`` is ``module:attribute``, and ``package`` is the distribution that declares it.

    ``part`` is the text before the first dot in the entry point's name, and ``name`` is the text after it.
    """

    kind: Kind
    part: str
    name: str
    value: str
    package: str
    version: str

    @property
    def entry(self) -> str:
        """The name of the entry point."""
        return f"{self.part}.{self.name}" if self.part else self.name

    def __str__(self) -> str:
        return f"{self.entry} ({PREFIX}{self.kind}) of the package {self.package} {self.version}"

    def error(self, reason: str) -> PluginError:
        """Return the error that says in one line why the plug-in cannot be used."""
        return PluginError(f"the plug-in {self} {' '.join(reason.split())}")


class PluginRegistry(Mapping[str, Thing], Generic[Thing]):
    """All entries of one kind by name: the built-in entries first, then the plug-ins.

    Iteration yields names and imports nothing. When a plug-in's name is first accessed, the plug-in is imported and
    passed with its name to ``accept``, which returns the entry, or raises TypeError or ValueError if the plug-in breaks
    the contract of its kind. An unknown name raises KeyError, and a faulty plug-in raises :class:`PluginError`.

    A kind may have several ``part``s, each with its own registry: the entry point ``decay.sawtooth`` is the entry
    ``sawtooth`` in the part ``decay``.
    """

    def __init__(
        self,
        kind: Kind,
        built_in: Mapping[str, Thing],
        accept: Callable[[str, object], Thing],
        part: str = "",
    ) -> None:
        self.kind, self.built_in, self.part, self._accept = kind, dict(built_in), part, accept
        self._loaded: dict[Plugin, Thing | PluginError] = {}

    def __getitem__(self, name: str) -> Thing:
        if name in self.built_in:
            return self.built_in[name]
        refused = None
        for plugin in self._offered():
            if plugin.name == name:
                reason = self._refusal(plugin)
                if not reason:
                    return self._load(plugin)
                refused = refused or plugin.error(reason)
        raise refused or KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (plugin.name for plugin in self.plugins())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self.built_in or any(plugin.name == name for plugin in self.plugins())
        )

    def plugins(self) -> tuple[Plugin, ...]:
        """Return the plug-ins of this kind with valid names; they may still fail to import."""
        return tuple(plugin for plugin in self._offered() if not self._refusal(plugin))

    def faults(self) -> list[PluginError]:
        """Import every plug-in of this kind; return a one-line error for each that cannot be used."""
        found = []
        for plugin in self._offered():
            try:
                if reason := self._refusal(plugin):
                    raise plugin.error(reason)
                self._load(plugin)
            except PluginError as error:
                found.append(error)
        return found

    def explain(self, name: object) -> str:
        """Return a hint for an error about an unknown name: why it is refused, the closest name, or ""."""
        for plugin in self._offered():
            if plugin.name == name and (reason := self._refusal(plugin)):
                return f"; {plugin.error(reason)}"
        near = difflib.get_close_matches(str(name)[:200], list(self), n=1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def _offered(self) -> tuple[Plugin, ...]:
        return tuple(
            plugin for plugin in installed() if (plugin.kind, plugin.part) == (self.kind, self.part)
        )

    def _refusal(self, plugin: Plugin) -> str:
        if not is_taken(plugin.package):
            return (
                f"is not among the plug-ins that this service accepts; the operator can add "
                f"{plugin.package} to plugins in the configuration (hpo serve --plugin "
                f"{plugin.package}, or {TAKEN})"
            )
        if not _NAME.fullmatch(plugin.name):
            return (
                "must have a name of lowercase letters, digits and underscores that starts "
                f"with a letter, but got {plugin.name!r}"
            )
        if plugin.name in self.built_in:
            return "uses the name of a built-in entry; give it another name"
        others = {
            other.package
            for other in self._offered()
            if other.name == plugin.name and other != plugin and is_taken(other.package)
        }
        if others:
            return (
                f"uses a name that {', '.join(sorted(others))} uses too; uninstall one, or "
                f"list the other in {TAKEN}"
            )
        return ""

    def _load(self, plugin: Plugin) -> Thing:
        if plugin not in self._loaded:
            self._loaded[plugin] = self._import(plugin)
        found = self._loaded[plugin]
        if isinstance(found, PluginError):
            raise found
        return found

    def _import(self, plugin: Plugin) -> Thing | PluginError:
        try:
            found = load_attribute(plugin.value)
        except (Exception, SystemExit) as error:
            return plugin.error(f"cannot be imported: {type(error).__name__}: {error}")
        try:
            return self._accept(plugin.name, found)
        except (TypeError, ValueError) as error:
            return plugin.error(f"breaks the contract of its kind: {error}")


def plugin_instance_of(kind: type[Thing]) -> Callable[[str, object], Thing]:
    """Return a function with which a registry checks that a plug-in provides an instance of ``kind``."""

    def check(name: str, found: object) -> Thing:
        if not isinstance(found, kind):
            raise TypeError(
                f"{name} must be an instance of {kind.__module__}.{kind.__name__}, but is {found!r:.100}"
            )
        return found

    return check


def installed() -> tuple[Plugin, ...]:
    """Return all installed plug-ins of every kind, usable or not, sorted by package and name."""
    return _installed(tuple(sys.path))


def load_attribute(reference: str) -> Any:
    """Return the object at ``module:attribute``; errors of the import are passed on."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def refused_packages() -> list[str]:
    """Return the packages whose installed plug-ins are not accepted."""
    return sorted({each.package for each in installed() if not is_taken(each.package)})


def is_taken(package: str) -> bool:
    """Return whether plug-ins of this package are accepted."""
    named = os.environ.get(TAKEN)
    return named is None or _normalized(package) in map(_normalized, named.split(","))


@functools.lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> tuple[Plugin, ...]:  # noqa: ARG001 - the key of the cache
    every = importlib.metadata.entry_points()  # of two copies on the path, the first counts
    found = {
        Plugin(kind, *_part_and_name(entry.name), entry.value, entry.dist.name, entry.dist.version)
        for kind in KINDS
        for entry in every.select(group=PREFIX + kind)
        if entry.dist is not None
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.package, plugin.kind, plugin.entry)))


def _part_and_name(entry: str) -> tuple[str, str]:
    part, dot, name = entry.partition(".")
    return (part, name) if dot else ("", entry)


def _normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package.strip()).lower()
