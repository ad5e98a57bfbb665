"""Print random sentences from the documentation, messages and docstrings for a reader to judge.

``python -m scripts.sample_sentences [--seed N] [--count N] [FOLDER]``
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("hpo", "trainers", "storage", "search_spaces")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text with at least five words."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _END.split(" ".join(paragraph.split())):
            if len(sentence.split()) >= 5:
                yield sentence


def of_page(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown page, without its code and tables."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#", "!"))]
    yield from sentences("\n".join(lines))


def of_module(text: str) -> Iterator[str]:
    """Yield the sentences of a module's docstrings and messages."""
    tree = ast.parse(text)
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts_of_others = {id(part) for node in joined for part in node.values}
    for node in ast.walk(tree):
        if id(node) in parts_of_others:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield from sentences("".join(str(part) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from sentences(node.value)


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--count", type=int, default=40)
    arguments = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files"], cwd=arguments.folder, capture_output=True, text=True, check=True
    ).stdout.split()
    drawn = set()
    for name in listed:
        text = arguments.folder / name
        if name in {"README.md", "CONTRIBUTING.md"} or re.fullmatch(
            r"docs/(?!reference/api).*\.md", name
        ):
            drawn |= set(of_page(text.read_text(encoding="utf-8")))
        elif name.endswith(".py") and name.split("/")[0] in PACKAGES:
            drawn |= set(of_module(text.read_text(encoding="utf-8")))
    for sentence in random.Random(arguments.seed).sample(sorted(drawn), arguments.count):
        sys.stdout.write(f"- {sentence}\n")


if __name__ == "__main__":
    main()
