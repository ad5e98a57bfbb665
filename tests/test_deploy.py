"""Containers, compose, Kubernetes, Apptainer: they call existing commands, and their ports and paths agree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hpo.cli.commands.doctor_checks import EXTRAS
from hpo.cli.main import main
from hpo.service.config import ServerConfig

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PORT = ServerConfig.model_validate({}).port
CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
KUBERNETES: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes" / "largebatch.yaml").read_text("utf-8"))
)
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in KUBERNETES
    if each["kind"] in ("Deployment", "Job")
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of `hpo`, with where it stands: what containers start, and what comments tell a person to type."""
    (start,) = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.M)
    yield "Containerfile", yaml.safe_load(start)
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            yield f"compose {name}", service["command"]
    for name, container in CONTAINERS.items():
        yield f"kubernetes {name}", container["args"]
    for path in (*DEPLOY.rglob("*.yaml"), DEPLOY / "largebatch.def"):
        for line in path.read_text("utf-8").splitlines():
            if found := re.search(r"^# .*?\bhpo ((?!STUDY|\"\$@)[a-z].*)$", line.strip()):
                yield f"{path.name}: {line.strip()}", shlex.split(found[1].split("`")[0])


CALLS = dict(commands())


def test_the_calls_are_found() -> None:
    assert len(CALLS) >= 11
    assert {"serve", "worker", "agent", "token", "doctor", "plan", "submit"} <= {
        words[0] for words in CALLS.values()
    }


@pytest.mark.parametrize("place", CALLS)
def test_every_call_is_one_of_the_command_line(place: str) -> None:
    command: click.Command = main
    words = [str(word) for word in CALLS[place]]
    while isinstance(command, click.Group):
        assert words[0] in command.commands, place
        command = command.commands[words.pop(0)]
    # parsed, not run: options, values and the number of arguments
    with command.make_context(place, words, resilient_parsing=False) as context:
        assert not context.args


def test_every_port_is_the_service_s() -> None:
    assert re.findall(r"^EXPOSE (\d+)$", CONTAINERFILE, re.M) == [str(PORT)]
    assert f"http://127.0.0.1:{PORT}/ready" in CONTAINERFILE
    assert COMPOSE["services"]["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert CONTAINERS["server"]["ports"][0]["containerPort"] == PORT
    (service,) = (each for each in KUBERNETES if each["kind"] == "Service")
    assert service["spec"]["ports"][0]["port"] == PORT
    (place,) = (
        each["value"] for each in CONTAINERS["agents"]["env"] if each["name"] == "HPO_SERVER"
    )
    assert place == f"http://{service['metadata']['name']}:{PORT}"


def test_probes_ask_what_the_service_answers() -> None:
    from hpo.service.app import create_app

    paths = create_app(ServerConfig.model_validate({})).openapi()["paths"]
    asked = {
        CONTAINERS["server"][probe]["httpGet"]["path"]
        for probe in ("livenessProbe", "readinessProbe")
    }
    assert asked == {"/health", "/ready"} <= set(paths)


def test_nobody_is_root() -> None:
    user = int(re.findall(r"useradd --uid (\d+)", CONTAINERFILE)[0])
    last = re.findall(r"^USER (\d+)$", CONTAINERFILE, re.M)[-1]
    assert (user > 1000, last) == (True, str(user))
    for name, pod in PODS.items():
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": user,
            "fsGroup": user,
        }, name
        locked = pod["containers"][0]["securityContext"]
        assert locked["allowPrivilegeEscalation"] is False and locked["capabilities"] == {
            "drop": ["ALL"]
        }
    for name in ("server", "worker"):
        assert COMPOSE["services"][name]["cap_drop"] == ["ALL"]


def test_folders_are_volumes_that_exist() -> None:
    volumes = set(yaml.safe_load(re.findall(r"^VOLUME (\[.*\])$", CONTAINERFILE, re.M)[0]))
    made = set(re.findall(r"(/\w+)", re.findall(r"install --directory [^\n&]*", CONTAINERFILE)[0]))
    assert volumes == made == {"/data", "/scratch"}
    for name in ("server", "worker"):
        service = COMPOSE["services"][name]
        (mounted,) = {each.split(":")[1] for each in service["volumes"]}
        assert mounted in service["command"]
        assert {each.split(":")[0] for each in service["volumes"]} <= set(COMPOSE["volumes"])
    for name, container in CONTAINERS.items():
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert set(mounts) == {each["name"] for each in PODS[name]["volumes"]}
        assert set(mounts.values()) & volumes <= set(container["args"]), name


def test_extras_and_python_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = re.findall(r"EXTRAS=([\w,]+)", CONTAINERFILE)
    asked += [COMPOSE["services"][name]["build"]["args"]["EXTRAS"] for name in ("server", "worker")]
    asked += re.findall(r"\[([\w,]+)\]\"$", (DEPLOY / "largebatch.def").read_text("utf-8"), re.M)
    assert len(asked) >= 5
    for extras in asked:
        assert set(extras.split(",")) <= set(EXTRAS) <= set(project["optional-dependencies"])
    told = {each.rpartition(" ")[2] for each in project["classifiers"]}
    bases = re.findall(
        r"python:(3\.\d+)-slim", CONTAINERFILE + (DEPLOY / "largebatch.def").read_text()
    )
    assert len(bases) == 2 and set(bases) <= told
    images = {container["image"] for container in CONTAINERS.values()}
    assert {image.rpartition(":")[2] for image in images} == {project["version"]}


def test_what_is_copied_into_an_image_is_let_in() -> None:
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY (\S+) ", CONTAINERFILE, re.M)
    assert set(copied) == let_in


def test_compose_takes_the_file() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run(
            [docker, "compose", "version"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("there is no docker compose here")
    done = subprocess.run(
        [docker, "compose", "--file", DEPLOY / "compose.yaml", "config", "--quiet"],
        env={"PATH": "/usr/bin:/bin", "POSTGRES_PASSWORD": "x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
