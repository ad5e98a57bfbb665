"""The wheel and the source distribution: complete, described, and usable outside the source tree.

The dependencies of the installed wheel are those of this environment, so that trainings run without a download; a plain
installation from an index, on every Python, is tests/service/test_plain_install.py.
"""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

from tests import wheels
from tests.wheels import NOT_COPIED, ROOT, environment, run

PACKAGES = ("hpo", "search_spaces", "trainers", "storage")

pytestmark = [pytest.mark.processes, pytest.mark.slow]
"""The distribution is built for them: half a minute."""


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return wheels.distribution(tmp_path_factory)


@pytest.fixture(scope="module")
def names(distribution: tuple[Path, Path]) -> set[str]:
    with zipfile.ZipFile(distribution[0]) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def installed(distribution: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with the dependencies of this one behind it."""
    folder = tmp_path_factory.mktemp("installed")
    programs = environment(Path(sys.executable), folder / "venv")
    done = run(*wheels.pip(programs), "--no-deps", distribution[0], folder=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return programs


def tracked(folder: str) -> set[str]:
    """The files below a folder of the checkout that are not made by running it."""
    found = set()
    for path in (ROOT / folder).rglob("*"):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and not any(NOT_COPIED("", [part]) for part in parts):
            found.add("/".join(parts))
    return found


def test_a_distribution_is_built_without_the_dependencies_of_trainings() -> None:
    """What `make dist` would run in a fresh checkout: it installs what builds, and nothing of the extras."""
    printed = run("make", "--dry-run", "VENV=.none", "BUILD_VENV=.none-build", "dist", folder=ROOT)
    assert printed.returncode == 0, printed.stderr
    installs = [line for line in printed.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 1 and "build setuptools" in installs[0], installs
    assert "constraints.txt" in installs[0]
    assert "-m build" in printed.stdout


def test_the_wheel_has_every_file_of_the_packages(names: set[str]) -> None:
    for package in PACKAGES:
        wanted = {name for name in tracked(package) if not name.endswith(("README.md", ".pyc"))}
        assert len(wanted) > 10
        assert wanted - names == set()
        assert f"{package}/py.typed" in names
    examples = {f"hpo/cli/{name}" for name in tracked("examples") if not name.endswith(".pyc")}
    assert examples and examples - names == set()


def test_the_wheel_has_nothing_else(names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        *PACKAGES,
        "largebatch",
        "hydra_plugins",
    }


def test_the_description_is_whole(distribution: tuple[Path, Path], names: set[str]) -> None:
    (place,) = {name for name in names if name.endswith(".dist-info/METADATA")}
    assert place.replace("METADATA", "licenses/LICENSE") in names
    with zipfile.ZipFile(distribution[0]) as wheel:
        told = Parser().parsestr(wheel.read(place).decode("utf-8"))
    assert (told["License-Expression"], told["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    kinds = told.get_all("Classifier")
    for each in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {each}" in kinds
    assert "Typing :: Typed" in kinds
    assert {"train", "serve", "export"} <= set(told.get_all("Provides-Extra"))
    assert told["Description-Content-Type"] == "text/markdown" and told.get_payload()


def test_the_source_distribution_can_be_tested_and_built(distribution: tuple[Path, Path]) -> None:
    with tarfile.open(distribution[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for folder in ("tests", "examples", "docs", "benchmarks", "scripts"):
        wanted = {name for name in tracked(folder) if not name.endswith(".pyc")}
        assert wanted and wanted - names == set(), folder
    assert {"LICENSE", "Makefile", "constraints.txt", "pyproject.toml", "setup.py"} <= names


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_installed_wheel_sweeps_its_example(installed: Path, tmp_path: Path) -> None:
    """Example, check, a sweep of real trainings on Ray; the whole main job is `scripts/try_installation.sh`."""
    where = run(installed / "python", "-c", "import hpo; print(hpo.__file__)", folder=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    written = run(installed / "hpo", "example", "own_workload", folder=tmp_path)
    assert "hpo run own_workload/cells.yaml" in written.stdout, written.stderr
    study = tmp_path / "own_workload" / "cells.yaml"
    spec = yaml.safe_load(study.read_text("utf-8"))
    del spec["full_scale"]  # the laws are not fitted
    spec.update(budget={"trials": 3, "epochs_per_trial": 3}, seeds=1)
    study.write_text(yaml.safe_dump(spec), encoding="utf-8")
    checked = run(installed / "hpo", "study", "check", study, "--no-timing", folder=tmp_path)
    assert checked.returncode == 0 and "at most" in checked.stdout, checked.stderr
    done = run(installed / "hpo", "run", study, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(rung["trials"] for rung in json.loads(done.stdout)["rungs"]) == 3


def test_an_installed_wheel_has_the_data_that_its_commands_read(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "table.csv").write_text(
        "global_batch_size,epochs_to_target\n256,10.2\n1024,11.1\n4096,14.3\n"
    )
    for words, said in (
        ("machines summit", "Summit"),
        ("recipes goyal2017", "Goyal"),
        ("extrapolate table.csv --at 8192 --json", "trust"),
        ("db upgrade", ""),
        ("plan --help", "--cost"),
    ):
        done = run(installed / "hpo", *words.split(), folder=tmp_path)
        assert (done.returncode, said in done.stdout) == (0, True), (words, done.stderr)


def test_an_installed_wheel_says_how_horovod_is_built(installed: Path, tmp_path: Path) -> None:
    """With a path that has a shell but no compiler, the missing tools are named, by doctor and by the command."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "realpath", "dirname", "mkdir", "ls", "uname"):
        (tools / name).symlink_to(shutil.which(name) or name)
    alone = {"PATH": str(tools), "LARGEBATCH_CACHE": str(tmp_path / "cache")}
    done = run(installed / "hpo", "install-horovod", folder=tmp_path, **alone)
    assert done.returncode == 1
    for tool in ("cmake", "make", "C++20 compiler"):
        assert tool in done.stderr, done.stderr
    assert "torch.distributed instead" in done.stderr
