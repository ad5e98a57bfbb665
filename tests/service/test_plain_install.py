"""A plain `pip install` of the package, without any extra: the client works with neither torch nor Ray installed.

The wheel is built from a copy of this checkout, and installed into a virtual environment of its own, for every Python
of this machine from 3.11 to 3.13.
"""

import json
from pathlib import Path

import pytest
from api_server import served, spec_of

from tests.wheels import distribution, environment, interpreters, pip, run

pytestmark = pytest.mark.processes

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return distribution(tmp_path_factory)[0]


@pytest.fixture(scope="module", params=interpreters())
def plain(request, wheel, tmp_path_factory):
    """The folder of the programs of a virtual environment with the wheel and what it asks for, and no more."""
    folder = tmp_path_factory.mktemp("plain")
    programs = environment(interpreters()[request.param], folder / "venv")
    install = (*pip(programs), "--timeout", "15")
    done = run(*install, wheel, folder=folder)
    if done.returncode != 0 and run(*install, "click", folder=folder).returncode != 0:
        last = done.stderr.strip().splitlines()[-1][:200]
        pytest.skip(f"no package index can be reached from here: {last}")
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
    for extra, package in {
        "train": "torch",
        "serve": "fastapi",
        "export": "pyarrow",
        "mcp": "mcp",
    }.items():
        told = found[f"extra {extra}"]
        assert (told["level"], package in told["message"]) == ("warn", True)
        assert told["way_out"] == f"pip install 'largebatch[{extra}]'"
    run(plain / "hpo", "db", "upgrade", folder=tmp_path)
    exported = run(plain / "hpo", "export", "parquet", "bowl", "--to", "out", folder=tmp_path)
    assert (exported.returncode, exported.stderr) == (
        2,
        "error: writing Parquet needs pyarrow, which is not installed; pip install 'largebatch[export]'\n",
    )


WINDOWS = """
import contextlib, io, json, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty"):
    sys.modules[name] = None                # a module of POSIX: to import it fails, as on Windows
from hpo.cli.main import main
told = []
for words in json.load(sys.stdin):
    out, code = io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(out):
            main(words.split())
    except SystemExit as end:
        code = end.code
    told.append([code, out.getvalue()])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_the_client_needs_nothing_that_only_posix_has(plain, server, tmp_path):
    (tmp_path / "study.yaml").write_text(spec_of("bowl"))
    (tmp_path / "program.py").write_text(WINDOWS)
    (tmp_path / "table.csv").write_text(
        "global_batch_size,epochs_to_target\n256,10.2\n1024,11.1\n4096,14.3\n"
    )
    commands = (
        ("submit study.yaml", "bowl is queued"),
        ("status --json", "bowl"),
        ("cancel bowl", "bowl is cancelled"),
        ("extrapolate table.csv --at 8192 --json", '"trust"'),
        ("db upgrade", ""),
        ("studies --json", '"bowl"'),
        ("machines summit", "Summit"),
        ("init --defaults --output new.yaml", "wrote new.yaml"),
        ("study check new.yaml", "only the file was checked"),
        ("example digits", "pip install 'largebatch[train]'"),
    )
    asked = json.dumps([words for words, _ in commands])
    done = run(plain / "python", "program.py", folder=tmp_path, given=asked, **server)
    assert done.returncode == 0, done.stderr
    for (words, said), (code, out) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 0, (words, out, done.stderr)
        assert said in out, words
