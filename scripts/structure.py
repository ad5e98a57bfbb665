"""Count the rooms, floors, arrows and circles in the structure of the packages, from their imports.

    python -m scripts.structure [ROOT] [--walk] [--edges PACKAGE]

A *room* of a package is a file or a subfolder directly inside it; an ``__init__.py`` that holds nothing but its
docstring is not a room. An *arrow* leads from a room to another room whose code it imports, even if the import is
inside a function or under ``if TYPE_CHECKING``. The *floors* are the rooms on the longest chain of arrows, with a
circle of rooms counted as one. A *circle* is a set of modules that import each other. ``tests/test_architecture.py``
checks the code against these counts.

``--walk`` follows a study's specification through ``hpo``. It starts at the command ``hpo run`` and enters, depth-first
and in source order, every function that takes or returns a ``StudySpec`` or a class that holds one. It counts the rooms
that are entered, how often a new room lies above the previous new room, and how often a call leads back into a room
that the walk had left.
"""

from __future__ import annotations

import argparse
import ast
import functools
import graphlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("search_spaces", "trainers", "storage", "hpo")
COUNTED = (*PACKAGES, "hpo.extrapolation", "hpo.planning", "hpo.runs", "hpo.service", "hpo.tuning")
IMPORTERS = ("__import__", "import_module", "importlib.import_module")
SPEC, ENTRY = "StudySpec", "run"
Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One import: ``lazy`` if inside a function, ``typed`` if under ``if TYPE_CHECKING``, where it never runs."""

    importer: str
    target: str
    line: int
    lazy: bool
    typed: bool


def modules_of(root: Path) -> dict[str, Path]:
    """Return every module of the packages below ``root``, keyed by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    """Yield all imports of a file, including imports by name (``import_module``)."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST, lazy: bool, typed: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for part in node.body:
                yield from walk(part, lazy, True)
            for part in node.orelse:
                yield from walk(part, lazy, typed)
            return
        for name in targets(node):
            yield Import(module, name, getattr(node, "lineno", 0), lazy, typed)
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy, typed)

    def targets(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in IMPORTERS
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)

    yield from walk(ast.parse(path.read_text("utf-8")), False, False)


def module_graph(imports: Iterable[Import], modules: Mapping[str, Path]) -> Graph:
    """Return which modules each module imports, in any way."""
    graph: Graph = {module: set() for module in modules}
    for item in imports:
        if item.target in modules and item.target != item.importer:
            graph[item.importer].add(item.target)
    return graph


def room_of(module: str, package: str, modules: Mapping[str, Path]) -> str | None:
    """Return the room that contains a module; None if it is outside the package or an empty ``__init__``."""
    if module == package:
        body = ast.parse(modules[module].read_text("utf-8")).body
        return "__init__" if any(not isinstance(node, ast.Expr) for node in body) else None
    return (
        module.removeprefix(f"{package}.").split(".")[0]
        if module.startswith(f"{package}.")
        else None
    )


def rooms_of(package: str, graph: Graph, modules: Mapping[str, Path]) -> Graph:
    """Return the rooms of a package with the other rooms that each one imports."""
    home = {module: room_of(module, package, modules) for module in modules}
    rooms: Graph = {room: set() for room in home.values() if room}
    for module, room in home.items():
        if room:
            rooms[room] |= {
                other for target in graph[module] if (other := home[target]) and other != room
            }
    return rooms


def circles(graph: Graph) -> list[list[str]]:
    """Return every strongly connected component of more than one node (Tarjan)."""
    return [sorted(part) for part in _components(graph) if len(part) > 1]


def floors(rooms: Graph) -> dict[str, int]:
    """Return the floor of every room, from 1: a room is above every room it imports; a circle shares one floor."""
    parts = _components(rooms)
    home = {room: number for number, part in enumerate(parts) for room in part}
    above = {
        number: {home[other] for room in part for other in rooms[room]} - {number}
        for number, part in enumerate(parts)
    }
    height: dict[int, int] = {}
    for number in graphlib.TopologicalSorter(above).static_order():
        height[number] = 1 + max((height[below] for below in above[number]), default=0)
    return {room: height[home[room]] for room in rooms}


def _components(graph: Graph) -> list[set[str]]:
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            part = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            found.append(part)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


class Walk:
    """The rooms that a study's specification passes through, in call order.

    Attributes:
        rooms: the rooms in call order, without returns to a caller. ups: the number of new rooms on a higher floor than
        the previous new room. returns: the number of calls into a room that the walk had left.
    """

    def __init__(self, modules: Mapping[str, Path], height: Mapping[str, int]) -> None:
        self._modules, self._height = modules, height
        self._carriers = _carriers(modules)
        self._seen: set[tuple[str, str]] = set()
        self.rooms: list[str] = []
        self.ups = self.returns = 0

    def enter(self, module: str, name: str, callers: tuple[str, ...] = ()) -> None:
        """Enter a function, and then every function it calls that involves a specification."""
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        room = room_of(module, "hpo", self._modules) or "__init__"
        if room not in callers[-1:] and room != (self.rooms or [""])[-1]:
            if room in self.rooms:
                self.returns += 1
            elif self.rooms:
                self.ups += self._height[room] > self._height[list(dict.fromkeys(self.rooms))[-1]]
            self.rooms.append(room)
        calls, names = _read(self._modules[module])
        for called in calls.get(name, ()):
            home = self._resolve(module, called, names)
            if home is not None and self._concerned(*home):
                self.enter(*home, (*callers, room))

    def _resolve(
        self, module: str, called: str, names: Mapping[str, str]
    ) -> tuple[str, str] | None:
        """Return the module and the name of the function of ``hpo`` that ``called`` refers to."""
        first, _, rest = called.partition(".")
        full = names.get(first, f"{module}.{first}") + (f".{rest}" if rest else "")
        home, _, name = full.rpartition(".")
        if home not in self._modules or not home.startswith("hpo"):
            return None
        calls, imported = _read(self._modules[home])
        if name in calls:
            return home, name
        return self._resolve(home, name, imported) if name in imported else None

    def _concerned(self, module: str, name: str) -> bool:
        """Whether the types of a function or fields of a class include a specification or a class that holds one."""
        return any(
            set(re.findall(r"\w+", hint)) & self._carriers
            for hint in _hints(self._modules[module], name)
        )


@functools.cache
def _read(path: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the calls of every function and class of a file, and the origin of its imported names."""
    tree = ast.parse(path.read_text("utf-8"))
    calls = {
        node.name: [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return calls, names


@functools.cache
def _hints(path: Path, name: str) -> list[str]:
    """Return the parameter and return types of a function, or the field types of a class."""
    hints: list[ast.expr | None] = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if getattr(node, "name", None) != name:
            continue
        for part in (
            [node, *getattr(node, "body", ())] if isinstance(node, ast.ClassDef) else [node]
        ):
            if isinstance(part, ast.AnnAssign):
                hints.append(part.annotation)
            elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and part.name in (
                name,
                "__init__",
            ):
                hints += [
                    argument.annotation for argument in (*part.args.args, *part.args.kwonlyargs)
                ]
                hints.append(part.returns if part is node else None)
    return [ast.unparse(hint) for hint in hints if hint is not None]


def _carriers(modules: Mapping[str, Path]) -> set[str]:
    """Return the names of the specification class and of all classes of ``hpo`` that hold it, even indirectly."""
    made_of = {
        name: {word for hint in _hints(path, name) for word in re.findall(r"\w+", hint)}
        for module, path in modules.items()
        if module.startswith("hpo")
        for name in _read(path)[0]
        if name.lstrip("_")[:1].isupper()
    }
    found = {SPEC}
    while more := {name for name, parts in made_of.items() if parts & found} - found:
        found |= more
    return found


def walk(root: Path, rooms: Graph) -> Walk:
    """Follow the specification of a study from the command ``hpo run`` through ``rooms``, the rooms of ``hpo``."""
    modules = modules_of(root)
    entry = next(
        module for module in ("hpo.cli.commands.study", "hpo.commands.study") if module in modules
    )
    found = Walk(modules, floors(rooms))
    found.enter(entry, ENTRY)
    return found


def table(root: Path) -> str:
    """Return rooms, floors, arrows and circles of the packages, as a Markdown table."""
    modules = modules_of(root)
    imports = [
        item for module, path in modules.items() for item in imports_of(module, path, modules)
    ]
    graph = module_graph(imports, modules)
    lines = [
        "| package | rooms | floors | arrows | circles of modules | circles of rooms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for package in (package for package in COUNTED if package in modules):
        rooms = rooms_of(package, graph, modules)
        inside = {
            module: {other for other in graph[module] if f"{other}.".startswith(f"{package}.")}
            for module in modules
            if f"{module}.".startswith(f"{package}.")
        }
        lines.append(
            f"| {package} | {len(rooms)} | {max(floors(rooms).values())} | {sum(map(len, rooms.values()))} | "
            f"{len(circles(inside))} | {len(circles(rooms))} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table and the requested details."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument(
        "--walk", action="store_true", help="follow a study's specification through hpo"
    )
    parser.add_argument(
        "--edges", metavar="PACKAGE", help="print a package's rooms by floor, with their imports"
    )
    options = parser.parse_args()
    print(table(options.root))
    modules = modules_of(options.root)
    imports = [
        item for module, path in modules.items() for item in imports_of(module, path, modules)
    ]
    graph = module_graph(imports, modules)
    for circle in circles(graph):
        print(f"\ncircle: {', '.join(circle)}")
    if options.edges:
        rooms = rooms_of(options.edges, graph, modules)
        print()
        for room, floor in sorted(floors(rooms).items(), key=lambda item: item[::-1]):
            print(f"{floor:3} {room}: {', '.join(sorted(rooms[room]))}")
    if options.walk:
        found = walk(options.root, rooms_of("hpo", graph, modules))
        print(
            f"\n{len(set(found.rooms))} rooms entered, {found.ups} times up, {found.returns} returns: "
            f"{' > '.join(found.rooms)}"
        )


if __name__ == "__main__":
    main()
