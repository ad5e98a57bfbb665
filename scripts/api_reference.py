"""Generate the page of the Python interface, docs/reference/api.md, from the docstrings of public names.

    python -m scripts.api_reference > docs/reference/api.md

The code is parsed, not imported. The public names are those in a package's ``__all__``; each is followed through the
imports to the file that defines it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("hpo", "search_spaces", "trainers")
MODULES = ("storage.store", "storage.records", "storage.errors")
"""The modules whose public classes and functions form the store's interface; they have no ``__all__``."""

HEAD = """# Python interface

<!-- written by: python -m scripts.api_reference > docs/reference/api.md -->

The names on this page are the public interface. Everything else may change without notice.
"""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Found:
    """A public name, the module that defines it, and its definition; ``doc`` is the docstring."""

    name: str
    module: str
    node: ast.stmt
    doc: str


def page(root: Path = ROOT) -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for package in PACKAGES:
        names = public_names(read(root, package))
        parts += _section(
            root, package, [found for name in names if (found := find(root, package, name))]
        )
    for module in MODULES:
        parts += _section(root, module, list(_defined(read(root, module), module)))
    return "\n".join(parts) + "\n"


def read(root: Path, module: str) -> ast.Module:
    """Return the syntax tree of a module or package."""
    base = root.joinpath(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(path.read_text("utf-8"))


def public_names(tree: ast.Module) -> list[str]:
    """Return the names in ``__all__``, sorted case-insensitively."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.lower)
    raise ValueError("a package of this page must have a literal __all__")


def find(root: Path, module: str, name: str) -> Found:
    """Return the definition of a name, following imports; :class:`LookupError` if there is none."""
    tree = read(root, module)
    for found in _definitions(tree, module):
        if found.name == name:
            return found
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) and node.module else ():
            if (
                (alias.asname or alias.name) != name
                or not isinstance(node, ast.ImportFrom)
                or not node.module
            ):
                continue
            base = root.joinpath(*node.module.split("."), f"{alias.name}.py")
            if base.is_file():  # a module is public as a whole
                inner = f"{node.module}.{alias.name}"
                return Found(name, inner, ast.Pass(), ast.get_docstring(read(root, inner)) or "")
            return find(root, node.module, alias.name)
    raise LookupError(f"{module} names {name!r} as public, but neither defines nor imports it")


def _definitions(tree: ast.Module, module: str) -> Iterator[Found]:
    for node, below in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, Definition):
            yield Found(node.name, module, node, ast.get_docstring(node) or "")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            text = below.value if isinstance(below, ast.Expr) else None
            doc = (
                text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            )
            yield Found(ast.unparse(target), module, node, inspect.cleandoc(doc))


def _defined(tree: ast.Module, module: str) -> Iterator[Found]:
    for found in _definitions(tree, module):
        if isinstance(found.node, Definition) and not found.name.startswith("_"):
            yield found


def _section(root: Path, module: str, names: list[Found]) -> Iterator[str]:
    yield f"\n## {module}\n"
    summary = ast.get_docstring(read(root, module)) or ""
    yield _markdown(summary.split("\n\n")[0]) + "\n"
    for found in names:
        yield from _entry(found)


def _entry(found: Found) -> Iterator[str]:
    yield f"### {found.name}\n"
    yield f"`{found.module}`\n"
    node = found.node
    if isinstance(node, ast.ClassDef):
        yield from _code(*_class_lines(node))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _code(_signature(node))
    if found.doc:
        yield _markdown(found.doc) + "\n"
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(
            method, (ast.FunctionDef, ast.AsyncFunctionDef)
        ) and not method.name.startswith("_"):
            yield f"- `{_signature(method)}`: {_markdown(_first_paragraph(method))}"
    if isinstance(node, ast.ClassDef):
        yield ""


def _class_lines(node: ast.ClassDef) -> Iterator[str]:
    """Yield the class, its constructors and its fields."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"class {node.name}{f'({bases})' if bases else ''}"
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            yield f"    {_signature(part)}"
        elif isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            yield f"    {ast.unparse(part.target)}: {ast.unparse(part.annotation)}"
        elif isinstance(part, ast.Assign) and node.bases and isinstance(part.value, ast.Constant):
            yield f"    {ast.unparse(part)}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = (
        f" -> {ast.unparse(node.returns)}"
        if node.returns is not None and node.name != "__init__"
        else ""
    )
    if any(
        ast.unparse(each) in ("property", "functools.cached_property")
        for each in node.decorator_list
    ):
        return f"{node.name}{returns}"
    arguments = ast.unparse(node.args)
    for first in ("self", "cls"):
        arguments = (
            arguments.removeprefix(first).removeprefix(", ")
            if arguments.split(",")[0] == first
            else arguments
        )
    return f"{kind}{node.name}({arguments}){returns}"


def _first_paragraph(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())


def _code(*lines: str) -> Iterator[str]:
    yield "```python"
    yield from lines
    yield "```\n"


def _markdown(doc: str) -> str:
    """Convert a docstring to Markdown: literals and roles as code, blocks after ``::`` fenced."""
    lines: list[str] = []
    block = False
    for line in doc.splitlines():
        if block and line and not line.startswith(" "):
            lines[-1:] = ["```", ""] if not lines[-1] else [lines[-1], "```", ""]
            block = False
        if line.rstrip().endswith("::") and not block:
            lines += [text] if (text := line.rstrip()[:-2]) else []
            lines += ["", "```"]
            block = True
        elif not (block and not line and lines[-1] == "```"):
            lines.append(line.removeprefix("    ") if block else _inline(line))
    return "\n".join([*lines, *(["```"] if block else [])]).strip("\n")


def _inline(line: str) -> str:
    text = line.replace("``", "`")
    for role in ("class", "func", "meth", "mod", "data", "attr"):
        text = text.replace(f":{role}:`~", "`").replace(f":{role}:`", "`")
    return text


if __name__ == "__main__":
    sys.stdout.write(page())
