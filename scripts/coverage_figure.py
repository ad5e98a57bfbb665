"""The test coverage recorded in CONTRIBUTING.md: ``make coverage`` measures it, ``make check`` prints it.

    python -m scripts.coverage_figure --write coverage.json     writes the figures that coverage.py has measured
    python -m scripts.coverage_figure                           prints them, and how much code has changed since

A measurement takes longer than the whole test suite, so ``make check`` only reports the last one. Lines that run only
in a child process are counted as well, because coverage.py follows subprocesses (``patch = subprocess`` in
pyproject.toml); killed processes and Ray's processes record nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("search_spaces", "trainers", "storage", "hpo")
BEGIN, END = "<!-- coverage: written by make coverage -->", "<!-- end of coverage -->"
OLD = 0.05
"""The share of a package's statements that may be added or removed before its figure counts as old."""


@dataclass(frozen=True)
class Figure:
    """The measurement of one package: the percentage of lines that ran, and the number of statements at that time."""

    package: str
    percent: float
    statements: int


def measured(report: str, root: Path = ROOT) -> list[Figure]:
    """Return the figures of coverage.py's JSON report; raise ValueError if it lacks a package."""
    lines, covered = defaultdict[str, int](int), defaultdict[str, int](int)
    for file, found in json.loads(report)["files"].items():
        package = Path(file).parts[0]
        lines[package] += found["summary"]["num_statements"]
        covered[package] += found["summary"]["covered_lines"]
    missing = [package for package in PACKAGES if not lines[package]]
    if missing:
        raise ValueError(f"the report has no lines of {', '.join(missing)}; run make coverage")
    return [
        Figure(package, 100 * covered[package] / lines[package], statements(root / package))
        for package in PACKAGES
    ]


def statements(folder: Path) -> int:
    """Count the statements in the Python files below a folder."""
    return sum(
        isinstance(node, ast.stmt)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def written(page: str, figures: list[Figure]) -> str:
    """Return the page with a table of the figures between its two markers; raise ValueError if they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"CONTRIBUTING.md must hold the lines {BEGIN!r} and {END!r}")
    rows = "\n".join(
        f"| `{each.package}` | {each.percent:.1f} % | {each.statements} |" for each in figures
    )
    table = f"| package | lines that tests run | statements then |\n|---|--:|--:|\n{rows}\n"
    return f"{before}{BEGIN}\n{table}{END}{after}"


def told(page: str) -> list[Figure]:
    """Return the figures on the page; an empty list if nothing has been measured yet."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return [
        Figure(package.strip("`"), float(share.removesuffix(" %")), int(count))
        for package, share, count in rows
    ]


def standing(figures: list[Figure], root: Path = ROOT) -> list[str]:
    """Return a line for each package with its figure and, if that is old, the current number of statements."""
    if not figures:
        return ["coverage: not measured yet; make coverage runs all tests and records it"]
    found = []
    for each in figures:
        now = statements(root / each.package)
        old = abs(now - each.statements) > OLD * each.statements
        since = (
            f"; old: {each.statements} statements then, {now} now (make coverage)" if old else ""
        )
        found.append(f"coverage of {each.package}: {each.percent:.1f} % of lines{since}")
    return found


def main() -> None:
    """Write the figures of a report, or print the stored ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="REPORT", help="`coverage json` report")
    report = parser.parse_args().write
    page = ROOT / "CONTRIBUTING.md"
    if report is not None:
        text = written(
            page.read_text(encoding="utf-8"), measured(report.read_text(encoding="utf-8"))
        )
        page.write_text(text, encoding="utf-8")
    sys.stdout.write("\n".join(standing(told(page.read_text(encoding="utf-8")))) + "\n")


if __name__ == "__main__":
    main()
