"""Imports run one way and in no circle, heavy libraries stay where they belong."""

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.structure import (
    Import,
    circles,
    floors,
    imports_of,
    module_graph,
    modules_of,
    rooms_of,
    walk,
)

ROOT = Path(__file__).parent.parent

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
    [{"callbacks"}],
    [{"study"}, {"extrapolation"}],
    [{"past_runs"}, {"ask_and_tell"}],
    [{"tuning"}, {"planning"}],
    [{"runs"}, {"client"}],
    [{"service"}, {"dashboard"}],
    [{"__init__"}],
    [{"cli"}, {"testing"}],
)
HOUSE = {"search_spaces": (11, 17), "trainers": (25, 94), "storage": (16, 44), "hpo": (15, 55)}
"""Rooms and arrows between them at most, as ``scripts.structure`` counts them."""
WEB = (
    "flask",
    "fastapi",
    "starlette",
    "uvicorn",
    "werkzeug",
    "aiohttp",
    "django",
    "tornado",
    "bottle",
)
HOMES = {
    **dict.fromkeys(("torchvision", "horovod", "h5py"), ("trainers",)),
    "torch": (
        "trainers",
        "hpo.tuning.trainable",
        "hpo.testing",
    ),  # what a trial's process runs, and its tests
    **dict.fromkeys(("sqlalchemy", "alembic"), ("storage",)),
    **dict.fromkeys(WEB, ("hpo.service", "hpo.dashboard")),
    "ray": ("hpo.tuning", "hpo.planning.launchers.ray_jobs", "trainers.asynchronous"),
    "optuna": (
        "hpo.tuning",
        "hpo.past_runs.optuna_database",
        "hpo.runs.exports.optuna_database",
        "hpo.runs.exports.optuna_study",
        "hpo.runs.importances",
        "hpo.dashboard.importance_figures",
        "search_spaces",
    ),
    "plotly": ("hpo.dashboard",),
    "pyarrow": ("storage",),
    **dict.fromkeys(("mcp", "mcp_types"), ("hpo.cli.assistant", "hpo.cli.commands.assistant")),
}
LAZY_HOMES = {("optuna", "search_spaces"), ("torch", "hpo.tuning.trainable")}


@functools.cache
def house(root: Path) -> tuple[dict[str, Path], list[Import]]:
    """Every module of a checkout, and every import of one: read once, as parsing all takes seconds."""
    modules = modules_of(root)
    return modules, [
        item for module, path in modules.items() for item in imports_of(module, path, modules)
    ]


def violations(root: Path) -> list[str]:
    modules, imports = house(root)
    found = [
        f"{item.importer}:{item.line} imports {item.target}: {reason}"
        for item in imports
        for reason in reasons(item)
    ]
    found += [
        f"{module} has no place in LAYERS"
        for module in modules
        if module.startswith("hpo.") and place(module) is None
    ]
    graph = module_graph(imports, modules)
    found += [f"import cycle: {', '.join(circle)}" for circle in circles(graph)]
    packages = [module for module, path in modules.items() if path.name == "__init__.py"]
    found += [
        f"import cycle in {package}: {', '.join(circle)}"
        for package in packages
        for circle in circles(rooms_of(package, graph, modules))
    ]
    return sorted(set(found))


def reasons(item: Import) -> Iterator[str]:
    package, library = item.importer.split(".")[0], item.target.split(".")[0]
    if library in PACKAGES and library not in PACKAGES[package]:
        yield f"{package} must not know {library}"
    if library == package == "hpo":
        yield from reasons_of_layer(item)
    homes = HOMES.get(library)
    if homes is None or item.typed:
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
    yield f"{unit(item.target)} is not below {unit(item.importer)}"


def unit(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def place(module: str) -> tuple[int, int] | None:
    for layer, groups in enumerate(LAYERS):
        for group, units in enumerate(groups):
            if unit(module) in units:
                return layer, group
    return None


def test_imports_run_one_way() -> None:
    assert violations(ROOT) == []


def test_the_house_has_no_more_rooms_and_arrows() -> None:
    """A change that adds one takes another away, or raises the number above and says why."""
    modules, imports = house(ROOT)
    graph = module_graph(imports, modules)
    for package, (most_rooms, most_arrows) in HOUSE.items():
        rooms = rooms_of(package, graph, modules)
        arrows = sum(map(len, rooms.values()))
        assert len(rooms) <= most_rooms and arrows <= most_arrows, (package, len(rooms), arrows)


@pytest.mark.slow
def test_a_specification_takes_a_short_way_through_the_house() -> None:
    """From `hpo run` to the sweep: through few rooms, upwards at most once, and rarely back."""
    modules, imports = house(ROOT)
    rooms = rooms_of("hpo", module_graph(imports, modules), modules)
    assert max(floors(rooms).values()) <= 7
    way = walk(ROOT, rooms)
    assert way.rooms[0] == "cli" and "tuning" in way.rooms
    assert (len(set(way.rooms)) <= 8, way.ups <= 1, way.returns <= 3) == (True, True, True), vars(
        way
    )


def test_the_check_sees_the_code() -> None:
    assert {"search_spaces.space", "hpo.study.spec", "hpo.errors"} <= modules_of(ROOT).keys()


CLEAN = {
    "search_spaces/space.py": "def f():\n    from optuna import distributions\n",
    "trainers/__init__.py": "",
    "trainers/begin.py": "import torch\nfrom search_spaces.space import f\n",
    "storage/store.py": "import sqlalchemy.orm\n",
    "hpo/__init__.py": "def __getattr__(name):\n    import hpo.dashboard.figures\n",
    "hpo/errors.py": "import typing as t\nif t.TYPE_CHECKING:\n    import torch\n",
    "hpo/study/__init__.py": "",
    "hpo/study/spec.py": "from hpo import errors\nfrom ..errors import E\n",
    "hpo/study/jobs.py": "",
    "hpo/tuning/tuner.py": "import ray\nimport optuna\nfrom ..study.spec import S\nfrom storage import store\n",
    "hpo/planning/__init__.py": "",
    "hpo/planning/plan.py": "from hpo import study\n",
    "hpo/planning/timing/costs.py": "",
    "hpo/planning/timing/failures.py": "",
    "hpo/planning/launchers/ray_jobs.py": "import ray.job_submission\nimport hpo.planning.timing.costs\n",
    "hpo/runs/run.py": "from hpo.tuning import tuner\nfrom hpo.planning import plan\n",
    "hpo/runs/api.py": "from hpo.runs import run\nfrom trainers import begin\n",
    "hpo/dashboard/figures.py": "import plotly\nfrom hpo.runs import run\n",
    "hpo/service/app.py": "import flask\nimport hpo.runs.api\n",
    "hpo/cli/main.py": "from hpo.runs import api\ndef report():\n    from hpo.dashboard import figures\n",
}
PLANTED = {
    "upward between packages": (
        "search_spaces/space.py",
        "import trainers.begin",
        "must not know trainers",
    ),
    "storage stands alone": (
        "storage/store.py",
        "import search_spaces",
        "must not know search_spaces",
    ),
    "trainer knows the service": (
        "trainers/begin.py",
        "from hpo.errors import E",
        "must not know hpo",
    ),
    "hidden in a function": (
        "trainers/begin.py",
        "def f():\n    import storage.store",
        "not know storage",
    ),
    "upward in hpo": (
        "hpo/study/spec.py",
        "from hpo.runs.api import run",
        "runs is not below study",
    ),
    "upward and relative": (
        "hpo/tuning/tuner.py",
        "from ..runs import api",
        "runs is not below tuning",
    ),
    "upward for types alone": (
        "hpo/study/spec.py",
        "if TYPE_CHECKING:\n    import hpo.runs.run",
        "runs is not below study",
    ),
    "between neighbours": (
        "hpo/planning/plan.py",
        "import hpo.tuning.tuner",
        "tuning is not below planning",
    ),
    "between neighbours, later": (
        "hpo/planning/plan.py",
        "def f():\n    import hpo.tuning.tuner",
        "tuning is not below planning",
    ),
    "between interfaces": (
        "hpo/service/app.py",
        "def f():\n    import hpo.cli.main",
        "cli is not below service",
    ),
    "package from below": ("hpo/study/spec.py", "import hpo", "__init__ is not below study"),
    "unplaced module": ("hpo/helpers.py", "", "no place in LAYERS"),
    "torch outside trainers": ("hpo/runs/api.py", "def f():\n    import torch.nn", "may use torch"),
    "torch by name": ("hpo/runs/api.py", "importlib.import_module('torch')", "may use torch"),
    "horovod outside trainers": ("hpo/planning/plan.py", "import horovod.torch", "may use horovod"),
    "sql outside storage": (
        "hpo/runs/api.py",
        "from sqlalchemy import select",
        "only storage may use sqlalchemy",
    ),
    "ray in planning": ("hpo/planning/plan.py", "import ray", "may use ray"),
    "ray in a look-alike": ("hpo/tuning_extra.py", "import ray", "may use ray"),
    "optuna in the api": ("hpo/runs/api.py", "import optuna", "may use optuna"),
    "optuna eagerly": ("search_spaces/space.py", "import optuna", "only inside a function"),
    "web outside interfaces": ("hpo/cli/main.py", "import flask", "may use flask"),
    "plotly in the service": (
        "hpo/service/app.py",
        "import plotly.graph_objects",
        "may use plotly",
    ),
    "cycle of modules": (
        "hpo/errors.py",
        "from hpo.study.spec import S",
        "import cycle: hpo.errors, hpo.study.spec",
    ),
    "cycle by a deferred import": (
        "hpo/errors.py",
        "def f():\n    import hpo.study.spec",
        "import cycle: hpo.errors",
    ),
    "cycle by a type": (
        "hpo/errors.py",
        "if TYPE_CHECKING:\n    import hpo.study.spec",
        "import cycle: hpo.errors",
    ),
    "cycle of folders alone": (
        "hpo/planning/timing/failures.py",
        "import hpo.planning.launchers.ray_jobs",
        "import cycle in hpo.planning: launchers, timing",
    ),
}


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(("file", "line", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, expected: str) -> None:
    plant(tmp_path, {**CLEAN, file: CLEAN.get(file, "") + line + "\n"})
    assert any(expected in found for found in violations(tmp_path)), violations(tmp_path)


def loaded_by(module: str, *heavy: str) -> set[str]:
    code = f"import sys, {module}; print(*(set({heavy!r}) & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_reading_a_study_loads_nothing_heavy() -> None:
    assert (
        loaded_by("hpo.study.spec", "torch", "ray", "optuna", "sqlalchemy", "scipy", "horovod")
        == set()
    )


def test_the_search_space_loads_nothing_heavy() -> None:
    assert (
        loaded_by("search_spaces", "torch", "ray", "optuna", "sqlalchemy", "scipy", "numpy")
        == set()
    )


def test_the_command_line_starts_without_heavy_libraries() -> None:
    assert loaded_by("hpo.cli.main", "torch", "ray", "optuna", "horovod", "sklearn") == set()


def test_beginning_loads_torch_only_for_a_model() -> None:
    assert loaded_by("trainers.begin, trainers.__main__", "torch", "ray", "horovod") == set()
