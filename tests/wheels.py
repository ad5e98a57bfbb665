"""The distribution, built from a copy of this checkout, and virtual environments to install it in."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_COPIED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "*.db*", "build", "dist", "site", "plans"
)


def run(
    *command: object, folder: Path, given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program outside the source tree, without this process's Python settings; ``given`` is its input."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **environment},
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def distribution(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution, built once for all processes of a run of the tests."""
    run_folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_folder = run_folder.parent  # that of the process belongs to it alone
    folder = run_folder / "distribution"
    with (run_folder / "distribution.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = run_folder / "distribution-unfinished"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            build(made)
            made.rename(folder)
    return _files(folder)


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution that `make dist` builds; the wheel is built from the other."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=NOT_COPIED)
    made = run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, folder=folder
    )
    assert made.returncode == 0, made.stdout + made.stderr
    shutil.rmtree(source)
    return _files(folder)


def _files(folder: Path) -> tuple[Path, Path]:
    (wheel,), (sdist,) = folder.glob("largebatch-*.whl"), folder.glob("largebatch-*.tar.gz")
    return wheel, sdist


def interpreters() -> dict[str, Path]:
    """Every Python from 3.11 to 3.13 of this machine, by its version: this one, those on the path and pyenv's."""
    found = {"{}.{}".format(*sys.version_info[:2]): Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.11", "3.12", "3.13"):
        on_path = shutil.which(f"python{version}")
        for each in (on_path, *sorted(pyenv.glob(f"{version}*/bin/python"), reverse=True)):
            if version not in found and each is not None and _is(each, version):
                found[version] = Path(each)
    return found


def _is(python: Path | str, version: str) -> bool:
    """Whether it really is that Python: some programs of pyenv only report that the version is not installed."""
    program = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info[:2]))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def environment(python: Path, folder: Path) -> Path:
    """Create a virtual environment without its own pip; return the folder of its programs."""
    made = run(python, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    assert made.returncode == 0, made.stderr
    return folder / "bin"


def pip(programs: Path) -> tuple[object, ...]:
    """Run `pip install` into an environment with the pip of this one, at the project's pinned versions."""
    options = ("--quiet", "--disable-pip-version-check", "--no-compile", "--retries", "0")
    return (
        sys.executable,
        *("-m", "pip", "--python", programs / "python", "install"),
        *options,
        "--constraint",
        ROOT / "constraints.txt",
    )
