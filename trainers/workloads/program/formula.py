"""Parse the cost of a program, a formula in its sizes such as ``6 * 12 * {depth} * {width}**2 * {samples}``.

A formula contains numbers, names, ``+ - * / **`` and parentheses; names may be in braces, as in a command. It is parsed
with Python's grammar and evaluated here, node by node, in floating point; no part of it is ever executed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from search_spaces.names import did_you_mean
from search_spaces.techniques.parametrizations import MODEL_SIZES
from trainers.errors import WorkloadError

SAMPLES = "samples"
SIZES = (*MODEL_SIZES, SAMPLES)
"""The names that a formula may contain."""
MOST_CHARACTERS = 500

_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_BRACES = re.compile(r"\{\s*(\w+)\s*\}")


@dataclass(frozen=True)
class CostFormula:
    """A parsed formula; ``names`` are the sizes that it uses, and ``text`` is its source."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    def value(self, sizes: Mapping[str, float]) -> float:
        """Return the formula's value at these sizes; raises :class:`WorkloadError` if it is not finite and positive."""
        try:
            value = _value(self._tree, sizes)
        except (ArithmeticError, TypeError):  # TypeError: a root of a negative number is complex
            value = math.nan
        if isinstance(value, complex) or not (math.isfinite(value) and value > 0):
            at = ", ".join(f"{name} {sizes[name]:g}" for name in self.names)
            raise WorkloadError(
                f"a cost must be a finite number above 0 at every size, but {self.text!r} is "
                f"{'not a number' if isinstance(value, complex) or math.isnan(value) else f'{value:g}'}"
                f"{f' at {at}' if at else ''}; correct the formula"
            )
        return value


def parse_cost(text: str, known: Collection[str] = SIZES) -> CostFormula:
    """Parse the formula; raises :class:`WorkloadError` if it contains anything that is not allowed.

    ``known`` are the names that may appear in the formula.
    """
    if len(text) > MOST_CHARACTERS:
        raise WorkloadError(
            f"a cost must have at most {MOST_CHARACTERS} characters, but has {len(text)}"
        )
    bare = _BRACES.sub(r"(\1)", text).strip()
    try:
        tree = ast.parse(bare, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(text, known, "the syntax is invalid") from error
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in known:
                raise _refused(
                    text, known, f"{node.id!r} is not allowed{did_you_mean(node.id, known)}"
                )
            names[node.id] = None
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
                raise _refused(text, known, f"{node.value!r} is not a number")
        elif isinstance(node, ast.BinOp):
            if type(node.op) not in _OPERATIONS:
                raise _refused(text, known, f"{ast.unparse(node)!r} is not allowed")
        elif isinstance(node, ast.UnaryOp):
            if not isinstance(node.op, (ast.UAdd, ast.USub)):
                raise _refused(text, known, f"{ast.unparse(node)!r} is not allowed")
        elif not isinstance(node, (ast.operator, ast.unaryop, ast.expr_context)):
            raise _refused(text, known, f"{ast.unparse(node)!r} is not allowed")
    return CostFormula(text, tuple(names), tree)


def _refused(text: str, known: Collection[str], reason: str) -> WorkloadError:
    names = ", ".join(f"{{{name}}}" for name in known)
    return WorkloadError(
        f"a cost may contain numbers, {names}, + - * / ** and parentheses, but in {text[:100]!r} {reason}"
    )


def _value(node: ast.expr, sizes: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]  # a number: the formula was checked
    if isinstance(node, ast.Name):
        return float(sizes[node.id])
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, sizes)
        return -value if isinstance(node.op, ast.USub) else value
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left, sizes), _value(node.right, sizes)
    return _OPERATIONS[type(node.op)](left, right)
