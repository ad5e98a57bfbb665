"""Everything with a registry is listed only there: a second list would be forgotten when one is added."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo.past_runs.importers import IMPORTERS
from hpo.planning.schedulers import SCHEDULERS
from hpo.study.samplers import SAMPLERS
from hpo.study.trackers import TRACKERS
from search_spaces.own_settings import RESERVED
from search_spaces.plugins import PluginRegistry
from search_spaces.techniques import TECHNIQUES
from storage.figures import TRIAL_FIELDS
from trainers.workloads.described import WORKLOADS

ROOT = Path(__file__).parent.parent
PACKAGES = ("hpo", "search_spaces", "trainers", "storage")
TECHNIQUES_STAND = "search_spaces/techniques/"
MOST = 2
"""Names in one list that may be a choice of a few, as ``("sgd", "lars")`` that a simulation knows."""
ELSEWHERE = {
    "hpo/past_runs/mlperf/settings.py",  # MLPerf's names of optimizers, with ours
    "hpo/past_runs/importers.py",  # of some trackers there is an importer of the same name: each list is its own
    "hpo/study/trackers.py",
}

DESCRIBED = [
    (SAMPLERS, "hpo/study/samplers.py"),
    (SCHEDULERS, "hpo/planning/schedulers.py"),
    (WORKLOADS, "trainers/workloads/described.py"),
    (IMPORTERS, "hpo/past_runs/importers.py"),
    (TRACKERS, "hpo/study/trackers.py"),
]


def lists(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """The words of each collection, call and text of a file, with its line."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        parts: list[ast.expr | None] = []
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        elif isinstance(node, ast.Call):
            parts = [*node.args]
        words = {part.value for part in parts if isinstance(part, ast.Constant)}
        if parts:
            yield node.lineno, {word for word in words if isinstance(word, str)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.replace(",", " ")
            if "\n" not in text.strip():
                yield node.lineno, set(text.split())


@functools.cache
def lists_of(text: str) -> list[tuple[int, set[str]]]:
    """Those of a file's text, parsed once for all tests."""
    return list(lists(ast.parse(text)))


def second_lists(root: Path, names: set[str], own: str = TECHNIQUES_STAND) -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if place.startswith(own) or place in ELSEWHERE:
                continue
            for line, words in lists_of(path.read_text(encoding="utf-8")):
                if len(words & names) > MOST:
                    yield f"{place}:{line} lists {', '.join(sorted(words & names))}"


OTHER_THINGS = {
    "search_spaces/own_settings.py",  # names that no setting may have: the test below holds them to the figures
    "hpo/past_runs/conversion.py",  # what another tool's run may say
    "hpo/runs/results.py",  # the outcomes of plans
    "hpo/service/routes/trials.py",  # what a page of trials may be sorted by
}


def test_no_second_list_of_the_figures_of_a_trial() -> None:
    names = {each.name for each in TRIAL_FIELDS}
    found = [
        each
        for each in second_lists(ROOT, names, "storage/figures.py")
        if each.split(":")[0] not in OTHER_THINGS and "/migrations/versions/" not in each
    ]
    assert found == []
    assert names <= RESERVED


@pytest.mark.parametrize("setting", TECHNIQUES)
def test_no_second_list_of_names(setting: str) -> None:
    assert list(second_lists(ROOT, {*TECHNIQUES[setting].built_in} - {"constant"})) == []


@pytest.mark.parametrize(
    ("registry", "own"),
    DESCRIBED,
)
def test_no_second_list_of_what_studies_and_plans_name(
    registry: PluginRegistry[Any], own: str
) -> None:
    assert list(second_lists(ROOT, {*registry.built_in}, own)) == []


def test_a_second_list_is_found(tmp_path: Path) -> None:
    (tmp_path / "hpo").mkdir()
    file = tmp_path / "hpo" / "some.py"
    names = {*TECHNIQUES["optimizer"].built_in}
    for text in (
        "A = ('sgd', 'lars', 'adam')",
        "A = {'sgd': 1, 'lars': 2, 'adam': 3}",
        "A = Literal['sgd', 'lars', 'adam']",
        "A = choice('sgd', 'lars', 'adam')",
        "A = 'sgd, lars or adam'",
    ):
        file.write_text(text)
        assert list(second_lists(tmp_path, names)) == ["hpo/some.py:1 lists adam, lars, sgd"]
    file.write_text("A = ('sgd', 'lars')")
    assert list(second_lists(tmp_path, names)) == []
