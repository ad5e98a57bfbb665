"""Install a wheel into an empty environment, use it, and print a row for benchmarks/installation.md.

    python -m scripts.try_installation dist/largebatch-0.1.0-py3-none-any.whl --python python3.12 --extras train \\
        --versions lowest --run

``--versions`` is ``pinned`` (by constraints.txt), ``newest`` (as pip finds them) or ``lowest``: the lower bounds of
pyproject.toml as ``uv pip compile --resolution lowest-direct`` resolves them, for which uv must be on the path.
``--run`` also runs an example with simulated training and, with the extra ``train``, one that trains on Ray. Everything
happens in a temporary folder outside the source tree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = "global_batch_size,epochs_to_target\n256,10.2\n1024,11.1\n4096,14.3\n"
SHOWN = ("click", "numpy", "optuna", "ray", "scipy", "sqlalchemy", "torch")
"""The packages whose installed versions a row lists."""


def call(folder: Path, *words: object) -> str:
    """Return the output of a program; raise SystemExit with the end of its output if it fails."""
    kept = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr[-2000:]}"
        )
    return done.stdout


def requirements(
    wheel: Path, extras: str, versions: str, python: str, folder: Path
) -> list[object]:
    """Return the arguments of `pip install`."""
    target = f"{wheel.absolute()}[{extras}]" if extras else str(wheel.absolute())
    if versions == "pinned":
        return ["--constraint", ROOT / "constraints.txt", target]
    if versions == "newest":
        return [target]
    version = call(folder, python, "-c", "import sys; print('{}.{}'.format(*sys.version_info[:2]))")
    each = [word for extra in extras.split(",") if extra for word in ("--extra", extra)]
    call(
        folder,
        *("uv", "pip", "compile", "--quiet", "--resolution", "lowest-direct", *each),
        *(
            "--python-version",
            version.strip(),
            ROOT / "pyproject.toml",
            "--output-file",
            "lowest.txt",
        ),
    )
    return ["--constraint", "lowest.txt", target]


def size(folder: Path) -> float:
    """Return the size in bytes of all files below a folder."""
    return float(sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()))


def use(folder: Path, extras: str) -> None:
    """Run the commands that a new user would run."""
    hpo = folder / "environment" / "bin" / "hpo"
    (folder / "table.csv").write_text(TABLE)
    call(folder, hpo, "extrapolate", "table.csv", "--at", "8192", "--json")
    call(folder, hpo, "doctor", "--quick")
    call(folder, hpo, "machines")
    if "train" in extras.split(","):
        call(folder, hpo, "example", "workflows")
        call(folder, hpo, "run", "workflows/bowl.yaml")
        call(folder, hpo, "example", "own_workload")
        study = folder / "own_workload" / "cells.yaml"
        study.write_text(
            study.read_text().replace(
                "trials: 12, epochs_per_trial: 30", "trials: 6, epochs_per_trial: 10"
            )
        )
        call(folder, hpo, "run", study)


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--extras", default="")
    parser.add_argument("--versions", choices=("pinned", "newest", "lowest"), default="pinned")
    parser.add_argument("--run", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="try-installation-") as place:
        folder = Path(place)
        wanted = requirements(asked.wheel, asked.extras, asked.versions, asked.python, folder)
        call(folder, asked.python, "-m", "venv", "environment")
        empty = size(folder / "environment")
        python = folder / "environment" / "bin" / "python"
        started = time.monotonic()
        call(folder, python, "-m", "pip", "install", "--quiet", "--no-compile", *wanted)
        seconds = time.monotonic() - started
        listed = dict(
            line.split("==")
            for line in call(folder, python, "-m", "pip", "freeze").lower().splitlines()
            if "==" in line
        )
        megabytes = (size(folder / "environment") - empty) / 1e6
        if asked.run:
            use(folder, asked.extras)
        versions = ", ".join(f"{name} {listed[name]}" for name in SHOWN if name in listed)
        version = call(folder, python, "--version").split()[1]
        print(
            f"| {version} | {asked.extras or 'none'} | {asked.versions} | {seconds:.0f} s | {megabytes:,.0f} MB | "
            f"{'yes' if asked.run else 'not tried'} | {versions} |"
        )


if __name__ == "__main__":
    main()
