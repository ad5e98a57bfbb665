"""A plain `pip install` of the package, without any extra: the client works with neither torch nor Ray installed.

The wheel is built from a copy of this checkout, and installed into a virtual environment of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import served, spec_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("hpo", "search_spaces", "trainers", "storage")
ABSENT = (
    "torch",
    "ray",
    "optuna",
    "horovod",
    "h5py",
    "sklearn",
    "fastapi",
    "starlette",
    "uvicorn",
    "psycopg",
    "pyarrow",
)
PROGRAM = """
import importlib.util, json, sys
import hpo
with hpo.Client() as client:
    study = client.submit("study.yaml")
    again = client.submit(hpo.load_study("study.yaml"))
    told = [event.kind for event in study.logs()]
    status = study.status()
print(json.dumps({"hpo": hpo.__file__, "name": again.name, "state": status.state, "told": told,
                  "there": [name for name in sys.argv[1:] if importlib.util.find_spec(name)],
                  "loaded": [name for name in ("torch", "ray", "sqlalchemy", "scipy") if name in sys.modules]}))
"""


def run(*command, folder, **environment):
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def built_wheel(folder):
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    made = run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        source,
        folder=folder,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("largebatch-*.whl")
    return wheel


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of the programs of a virtual environment with the wheel and what it asks for, and no more."""
    folder = tmp_path_factory.mktemp("plain")
    wheel = built_wheel(folder)
    assert run(sys.executable, "-m", "venv", folder / "venv", folder=folder).returncode == 0
    programs = folder / "venv" / "bin"
    pip = (
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--constraint",
        ROOT / "constraints.txt",
    )
    index = run(*pip, "--retries", "0", "--timeout", "15", "click", folder=folder)
    if index.returncode != 0:
        pytest.skip(
            f"no package index can be reached from here: {index.stderr.strip().splitlines()[-1][:200]}"
        )
    done = run(*pip, wheel, folder=folder)
    assert done.returncode == 0, done.stderr
    return programs


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as api:
        yield {"HPO_SERVER": str(api.client.base_url), "HPO_TOKEN": api.token("ada")}


@pytest.mark.slow
def test_the_client_works_without_torch_and_ray(plain, server, tmp_path):
    (tmp_path / "study.yaml").write_text(spec_of("bowl"))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(plain / "python", "program.py", *ABSENT, folder=tmp_path, **server)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert Path(told.pop("hpo")).is_relative_to(plain.parent)
    assert told == {
        "name": "bowl",
        "state": "queued",
        "told": ["submitted"],
        "there": [],
        "loaded": [],
    }

    submitted = run(plain / "hpo", "submit", "study.yaml", folder=tmp_path, **server)
    assert (submitted.returncode, submitted.stderr) == (0, "")
    assert submitted.stdout.startswith("bowl is queued")
    listed = run(plain / "hpo", "status", "--json", folder=tmp_path, **server)
    assert [study["name"] for study in json.loads(listed.stdout)] == ["bowl"]
    assert (
        "bowl is cancelled"
        in run(plain / "hpo", "cancel", "bowl", folder=tmp_path, **server).stdout
    )


@pytest.mark.slow
def test_what_needs_an_extra_says_which(plain, tmp_path):
    doctor = run(plain / "hpo", "doctor", "--json", folder=tmp_path)
    found = {each["name"]: each for each in json.loads(doctor.stdout)}
    assert (doctor.returncode, found["base"]["level"]) == (0, "ok")
    for extra, package in {"train": "torch", "serve": "fastapi", "export": "pyarrow"}.items():
        told = found[f"extra {extra}"]
        assert (told["level"], package in told["message"]) == ("warn", True)
        assert told["way_out"] == f"pip install 'largebatch[{extra}]'"
    run(plain / "hpo", "db", "upgrade", folder=tmp_path)
    exported = run(plain / "hpo", "export", "parquet", "bowl", "--to", "out", folder=tmp_path)
    assert (exported.returncode, exported.stderr) == (
        2,
        "error: writing Parquet needs pyarrow, which is not installed; pip install 'largebatch[export]'\n",
    )
