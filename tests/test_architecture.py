"""Imports run one way, heavy libraries stay where they belong, modules stay small."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = {"tests": 500}     # a contract test class is long by nature; all else:
MAX_LINES_ELSEWHERE = 400

PACKAGES = {
    "search_spaces": {"search_spaces"},
    "trainers": {"trainers", "search_spaces"},
    "storage": {"storage"},
    "hpo": {"hpo", "trainers", "search_spaces", "storage"},
}
# hpo from the bottom to the top: a unit imports from lower layers and from its own group, never from a
# neighbouring group of its layer
LAYERS = (
    [{"errors"}],
    [{"yaml_text", "study_faults", "study_recipe", "study_rules", "study"}],
    [{"jobs", "progress"}],
    [{"extrapolation"}],
    [{"tuning"}, {"planning"}],
    [{"results", "forecasting", "keeping", "launching", "words", "leases", "mlperf"}],
    [{"running"}],
    [{"api"}],
    [{"__init__"}],
    [{"service"}, {"dashboard"}, {"cli", "commands", "terminal"}],
    [{"__main__"}],
)
# `hpo serve` and `hpo report` start the neighbours of the command line, and `hpo.figures` is the dashboard's;
# each inside the function that needs it
LAZY_EDGES = {("commands", "service"), ("commands", "dashboard"), ("__init__", "dashboard"), ("__init__", "service")}
WEB = ("flask", "fastapi", "starlette", "uvicorn", "werkzeug", "aiohttp", "django", "tornado", "bottle")
HOMES = {
    **dict.fromkeys(("torchvision", "horovod", "h5py"), ("trainers",)),
    "torch": ("trainers", "hpo.tuning.trainable"),      # the trainable is what a trial's process runs
    **dict.fromkeys(("sqlalchemy", "alembic"), ("storage",)),
    **dict.fromkeys(WEB, ("hpo.service", "hpo.dashboard")),
    "ray": ("hpo.tuning", "hpo.planning.launchers.ray_jobs", "trainers.asynchronous"),
    "optuna": ("hpo.tuning", "search_spaces"),
    "plotly": ("hpo.dashboard",),
    "pyarrow": ("storage",),
}
IMPORTERS = ("__import__", "import_module", "importlib.import_module")
LAZY_HOMES = {("optuna", "search_spaces"), ("torch", "hpo.tuning.trainable")}


@dataclass(frozen=True)
class Import:
    importer: str
    target: str
    line: int
    lazy: bool


def modules_of(root: Path) -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """All imports that can run; those under ``if TYPE_CHECKING`` cannot."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from walk(child, lazy)
            return
        for name in targets(node):
            yield Import(module, name, node.lineno, lazy)
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy)

    def targets(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
        elif (isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS and node.args
              and isinstance(node.args[0], ast.Constant)):
            yield str(node.args[0].value)

    yield from walk(ast.parse(path.read_text("utf-8")), False)


def violations(root: Path) -> list[str]:
    modules = modules_of(root)
    imports = [item for module, path in modules.items() for item in imports_of(module, path, modules)]
    found = [f"{item.importer}:{item.line} imports {item.target}: {reason}"
             for item in imports for reason in reasons(item)]
    found += [f"{module} has no place in LAYERS" for module in modules
              if module.startswith("hpo.") and place(module) is None]
    return sorted(set(found)) + cycles(imports, modules)


def reasons(item: Import) -> Iterator[str]:
    package, library = item.importer.split(".")[0], item.target.split(".")[0]
    if library in PACKAGES and library not in PACKAGES[package]:
        yield f"{package} must not know {library}"
    if library == package == "hpo":
        yield from reasons_of_layer(item)
    homes = HOMES.get(library)
    if homes is None:
        return
    home = next((home for home in homes if f"{item.importer}.".startswith(f"{home}.")), None)
    if home is None:
        yield f"only {' and '.join(homes)} may use {library}"
    elif (library, home) in LAZY_HOMES and not item.lazy:
        yield f"{home} may import {library} only inside a function"


def reasons_of_layer(item: Import) -> Iterator[str]:
    here, there = place(item.importer), place(item.target)
    if here is None or there is None or there[0] < here[0] or here == there:
        return
    if item.lazy and (unit(item.importer), unit(item.target)) in LAZY_EDGES:
        return
    yield f"{unit(item.target)} is not below {unit(item.importer)}"


def unit(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def place(module: str) -> tuple[int, int] | None:
    for layer, groups in enumerate(LAYERS):
        for group, units in enumerate(groups):
            if unit(module) in units:
                return layer, group
    return None


def cycles(imports: list[Import], modules: dict[str, Path]) -> list[str]:
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for item in imports:
        if not item.lazy and item.target in modules and item.target != item.importer:
            graph[item.importer].add(item.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"import cycle: {' <- '.join(error.args[1])}"]
    return []


def long_files(root: Path) -> list[str]:
    folders = [*PACKAGES, "tests", "benchmarks", "examples"]
    return [f"{path.relative_to(root)} has {count} lines, at most {limit} are allowed"
            for folder in folders for path in sorted((root / folder).rglob("*.py"))
            if (count := len(path.read_text("utf-8").splitlines()))
            > (limit := MAX_LINES.get(folder, MAX_LINES_ELSEWHERE))]


def test_imports_run_one_way() -> None:
    assert violations(ROOT) == []


def test_the_check_sees_the_code() -> None:
    assert {"search_spaces.space", "hpo.study", "hpo.errors"} <= modules_of(ROOT).keys()


def test_files_are_small() -> None:
    assert long_files(ROOT) == []


CLEAN = {
    "search_spaces/space.py": "def f():\n    from optuna import distributions\n",
    "trainers/__init__.py": "",
    "trainers/train.py": "import torch\nfrom search_spaces.space import f\n",
    "storage/store.py": "import sqlalchemy.orm\n",
    "hpo/__init__.py": "def __getattr__(name):\n    import hpo.dashboard.figures\n",
    "hpo/errors.py": "import typing as t\nif t.TYPE_CHECKING:\n    import torch\n    import hpo.api\n",
    "hpo/study.py": "from hpo import errors\nfrom .errors import E\n",
    "hpo/tuning/tuner.py": "import ray\nimport optuna\nfrom ..study import S\nfrom storage import store\n",
    "hpo/planning/plan.py": "from hpo import study\n",
    "hpo/planning/launchers/ray_jobs.py": "import ray.job_submission\n",
    "hpo/api.py": "from hpo.tuning import tuner\nfrom hpo.planning import plan\nfrom trainers import train\n",
    "hpo/dashboard/figures.py": "import plotly\nfrom hpo import api\n",
    "hpo/service/app.py": "import flask\nimport hpo\n",
    "hpo/commands/study.py": "from hpo import api\ndef report():\n    from hpo.dashboard import figures\n",
}
PLANTED = {
    "upward between packages": ("search_spaces/space.py", "import trainers.train", "must not know trainers"),
    "storage stands alone": ("storage/store.py", "import search_spaces", "must not know search_spaces"),
    "trainer knows the service": ("trainers/train.py", "from hpo.errors import E", "must not know hpo"),
    "hidden in a function": ("trainers/train.py", "def f():\n    import storage.store", "not know storage"),
    "upward in hpo": ("hpo/study.py", "from hpo.api import run", "api is not below study"),
    "upward and relative": ("hpo/tuning/tuner.py", "from .. import api", "api is not below tuning"),
    "between neighbours": ("hpo/planning/plan.py", "import hpo.tuning.tuner", "tuning is not below planning"),
    "between faces": ("hpo/service/app.py", "def f():\n    import hpo.cli", "cli is not below service"),
    "cli starts eagerly": ("hpo/cli.py", "from hpo.service import app", "service is not below cli"),
    "package from below": ("hpo/study.py", "import hpo", "__init__ is not below study"),
    "unplaced module": ("hpo/helpers.py", "", "no place in LAYERS"),
    "torch outside trainers": ("hpo/api.py", "def f():\n    import torch.nn", "may use torch"),
    "torch by name": ("hpo/api.py", "importlib.import_module('torch')", "may use torch"),
    "horovod outside trainers": ("hpo/planning/plan.py", "import horovod.torch", "may use horovod"),
    "sql outside storage": ("hpo/api.py", "from sqlalchemy import select", "only storage may use sqlalchemy"),
    "ray in planning": ("hpo/planning/plan.py", "import ray", "may use ray"),
    "ray in a look-alike": ("hpo/tuning_extra.py", "import ray", "may use ray"),
    "optuna in the api": ("hpo/api.py", "import optuna", "may use optuna"),
    "optuna eagerly": ("search_spaces/space.py", "import optuna", "only inside a function"),
    "web outside faces": ("hpo/cli.py", "import flask", "may use flask"),
    "plotly in the service": ("hpo/service/app.py", "import plotly.graph_objects", "may use plotly"),
    "cycle": ("hpo/errors.py", "from hpo.study import S", "import cycle"),
}


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert violations(tmp_path) == []
    assert long_files(tmp_path) == []


@pytest.mark.parametrize(("file", "line", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, expected: str) -> None:
    plant(tmp_path, {**CLEAN, file: CLEAN.get(file, "") + line + "\n"})
    assert any(expected in found for found in violations(tmp_path)), violations(tmp_path)


def test_a_long_file_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"hpo/a.py": "x = 1\n" * 400, "hpo/b.py": "x = 1\n" * 401, "tests/c.py": "x = 1\n" * 501})
    assert long_files(tmp_path) == ["hpo/b.py has 401 lines, at most 400 are allowed",
                                    "tests/c.py has 501 lines, at most 500 are allowed"]


def loaded_by(module: str, *heavy: str) -> set[str]:
    code = f"import sys, {module}; print(*(set({heavy!r}) & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_reading_a_study_loads_nothing_heavy() -> None:
    assert loaded_by("hpo.study", "torch", "ray", "optuna", "sqlalchemy", "scipy", "horovod") == set()


def test_the_search_space_loads_nothing_heavy() -> None:
    assert loaded_by("search_spaces", "torch", "ray", "optuna", "sqlalchemy", "scipy", "numpy") == set()


@pytest.mark.skipif(not (ROOT / "hpo" / "cli.py").exists() and not (ROOT / "hpo" / "cli").exists(),
                    reason="there is no command line yet")
def test_the_command_line_starts_without_heavy_libraries() -> None:
    assert loaded_by("hpo.cli", "torch", "ray", "optuna", "horovod", "sklearn") == set()
