"""Converts YAML text to plain values, with the line of every value.

Scalars follow YAML 1.2's core schema, which avoids the surprises of YAML 1.1: ``1e-4`` is a number, ``no`` and
``2024-01-01`` are text, and ``010`` is ten. Keys are text. Duplicate keys, tags, and aliases that expand a small file
into a huge one are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from hpo.errors import MOST_FAULTS, SpecFault

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 20

Location = tuple[str | int, ...]

_TOO_MANY = f"a study file must have at most {MAX_VALUES:,} values, aliases expanded"
_TOO_DEEP = f"values must be nested at most {MAX_DEPTH} deep"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass
class YamlDocument:
    """A YAML text as plain values (dict, list, text, numbers, booleans, None), with the line of each.

    ``lines`` maps each location (the keys and indices that lead to a value) to its line, counted from 1.
    """

    value: Any = None
    lines: dict[Location, int] = field(default_factory=dict)
    faults: list[SpecFault] = field(default_factory=list)

    def line(self, location: Location) -> int | None:
        """Return the line of a value, or of the nearest enclosing one; None at the root."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location) if location else None


def read(text: str) -> YamlDocument:
    """Read the plain values of a YAML text; errors are collected in ``faults``, and none is raised."""
    document = YamlDocument()
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        document.faults.append(SpecFault(f"a study file must be UTF-8, but {error.reason}"))
        return document
    if size > MAX_BYTES:
        document.faults.append(
            SpecFault(f"a study file must have at most {MAX_BYTES:,} bytes, but got {size:,}")
        )
        return document
    try:
        _check_events(text)
        root = yaml.compose(text, Loader=_Loader)
        document.value = None if root is None else _Reader(document).plain(root, ())
    except yaml.YAMLError as error:
        document.faults.append(_fault(error))
    except _GivenUpError as error:
        document.faults.append(error.fault)
    return document


def write(value: Any) -> str:
    """Return the YAML text that :func:`read` converts back to ``value``; keys keep their order."""
    return str(
        yaml.dump(
            value,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=110,
            default_flow_style=None,
        )
    )


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes every text that :func:`read` would interpret as a number."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Write text, with escapes if it contains a Unicode line break, which YAML would fold into a space."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"(?:{_FLOAT.pattern})$"), list("-+.0123456789")
)


class _GivenUpError(Exception):
    """Raised when reading cannot continue."""

    def __init__(self, message: str, mark: Any) -> None:
        super().__init__(message)
        self.fault = SpecFault(message, line=mark.line + 1)


class _Reader:
    """Converts the nodes of a document to plain values and counts them, with aliases expanded."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.count = 0

    def plain(self, node: yaml.Node, location: Location) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _GivenUpError(_TOO_MANY, node.start_mark)
        if len(location) > MAX_DEPTH:
            raise _GivenUpError(_TOO_DEEP, node.start_mark)
        self.document.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*location, index)) for index, item in enumerate(node.value)]
        return _scalar(str(node.value), str(getattr(node, "style", None) or ""))

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _GivenUpError(
                    "a key must be text, but got a list or a mapping", key_node.start_mark
                )
            key = str(key_node.value)
            if key in values:
                if len(self.document.faults) > MOST_FAULTS:
                    continue
                first = self.document.lines[(*location, key)]
                self.document.faults.append(
                    SpecFault(
                        f"a key must be unique, but got {key!r} a second time, after line {first}",
                        line,
                        ".".join(map(str, (*location, key))),
                    )
                )
                continue
            self.document.lines[(*location, key)] = line
            values[key] = self.plain(value_node, (*location, key))
        return values


def _scalar(text: str, style: str) -> str | int | float | bool | None:
    if style:  # the text is quoted or a block scalar
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= 300:  # numbers with more digits do not fit in a float
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _check_events(text: str) -> None:
    # composing recurses once per level and keeps every node, so the size is checked on the flat event stream first
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if (
            count > 3 * MAX_VALUES
        ):  # a value has its own and its key's scalar event, or a start and an end event
            raise _GivenUpError(_TOO_MANY, event.start_mark)
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _GivenUpError(
                f"a study file must hold plain values, but got the tag {tag!r}", event.start_mark
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH:
            raise _GivenUpError(_TOO_DEEP, event.start_mark)


def _fault(error: yaml.YAMLError) -> SpecFault:
    mark = getattr(error, "problem_mark", None)
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    problem = ", ".join(part for part in parts if part) or " ".join(str(error).split())
    return SpecFault(
        f"a study file must be YAML, but it cannot be read: {problem}",
        line=None if mark is None else mark.line + 1,
    )
