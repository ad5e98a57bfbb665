"""The checks of `hpo doctor`. Libraries that may hang or crash are tried in a separate process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hpo.cli.commands.horovod import missing_for_horovod
from search_spaces.plugins import PluginRegistry
from storage.maintenance.checks import CheckFinding

OLDEST_PYTHON = (3, 11)
LITTLE_BYTES, TOO_LITTLE_BYTES = 5 * 2**30, 200 * 2**20
SHARED_MEMORY_BYTES = 2**30
PROBE_SECONDS = 90.0
EXTRAS = {
    "train": "sweeps and training runs work here",
    "serve": "`hpo serve` and PostgreSQL work here",
    "export": "`hpo export parquet` works here",
    "mcp": "`hpo mcp` works here",
}

TORCH = """
import json, torch
devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(),
                  "devices": [torch.cuda.get_device_name(number) for number in devices]}))
"""
HOROVOD = """
import json, horovod, horovod.torch as hvd
print(json.dumps({"version": horovod.__version__, "gloo": hvd.gloo_built(), "nccl": bool(hvd.nccl_built()),
                  "mpi": hvd.mpi_built()}))
"""
RULES_OF_PLUGINS = """
import json
from hpo.past_runs.importers import IMPORTERS
from hpo.planning.schedulers import SCHEDULERS
from hpo.study.samplers import SAMPLERS
from hpo.study.trackers import TRACKERS
from search_spaces.plugins import PluginError, load_attribute
from search_spaces.techniques import TECHNIQUES
from trainers.errors import TrainerError
from trainers.workloads.described import WORKLOADS
faults = []
def load(registry, rule_of):
    for plugin in registry.plugins():
        try:
            described = registry[plugin.name]
        except PluginError:
            continue
        try:
            rule_of(plugin.name, described)
        except TrainerError as error:
            faults.append(str(error))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            faults.append(str(plugin.error(f"has the rule {described.rule}, which cannot be imported: {why}")))
def technique(name, _):
    from trainers.optimizers.optimizer import optimizer_rule_named
    from trainers.schedules.formulas import formula_named
    optimizer_rule_named(name) if setting == "optimizer" else formula_named(setting, name)
def workload(name, _):
    from trainers.workloads import workload_class
    workload_class(name)
for setting, registry in TECHNIQUES.items():
    load(registry, technique)
load(WORKLOADS, workload)
for registry in (SAMPLERS, SCHEDULERS, IMPORTERS, TRACKERS):
    load(registry, lambda _, described: load_attribute(described.rule))
print(json.dumps({"faults": faults}))
"""
RAY = """
import json, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
answer = ray.get(ray.remote(lambda: 6 * 7).remote(), timeout=60)
print(json.dumps({"version": ray.__version__, "answer": answer}))
ray.shutdown()
"""


def installation() -> Iterator[CheckFinding]:
    """Check Python, this package, and the completeness of its extras."""
    version = sys.version.split()[0]
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield CheckFinding("python", "fail", f"Python {version}", "install Python 3.11 or later")
    else:
        yield CheckFinding("python", "ok", f"Python {version} at {sys.executable}")
    yield CheckFinding("package", "ok", f"largebatch {importlib.metadata.version('largebatch')}")
    for extra, purpose in {"": "the client and the forecasts work here", **EXTRAS}.items():
        yield _extra(extra, purpose)


def _extra(extra: str, purpose: str) -> CheckFinding:
    name = f"extra {extra}" if extra else "base"
    missing = [each for each in requirements(extra) if not _installed(each)]
    if not missing:
        return CheckFinding(name, "ok", purpose)
    target = f"'largebatch[{extra}]'" if extra else "largebatch"
    return CheckFinding(
        name,
        "warn" if extra else "fail",
        f"not installed: {', '.join(missing)}",
        f"pip install {target}",
    )


def requirements(extra: str) -> list[str]:
    """Return the packages required by this package or one of its extras."""
    found = []
    for line in importlib.metadata.requires("largebatch") or ():
        requirement, _, marker = line.partition(";")
        of_extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if (of_extra[1] if of_extra else "") == extra:
            found.append(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0])
    return found


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def training_libraries() -> Iterator[CheckFinding]:
    """Check torch with its threads and devices, Horovod, and whether Ray starts."""
    if not _installed("torch"):
        return  # reported with the extra
    torch = probe(TORCH)
    yield from _torch(torch)
    horovod = probe(HOROVOD) if _installed("horovod") else "it is not installed"
    if isinstance(horovod, str):
        absent = missing_for_horovod()
        yield CheckFinding(
            "horovod",
            "warn",
            f"Horovod cannot be used: {horovod}; plans run on torch.distributed instead",
            (f"install {', '.join(absent)}; then " if absent else "")
            + "hpo install-horovod builds it, in about three minutes",
        )
    else:
        built = [name for name in ("gloo", "nccl", "mpi") if horovod[name]]
        yield CheckFinding(
            "horovod",
            "ok",
            f"Horovod {horovod['version']} with {', '.join(built) or 'no transport'}",
        )
    if _installed("ray"):
        ray = probe(RAY)
        if isinstance(ray, str):
            yield CheckFinding(
                "ray",
                "fail",
                f"Ray does not start: {ray}",
                "see /tmp/ray/session_latest/logs; check free memory and whether local ports "
                "can be opened",
            )
        else:
            yield CheckFinding("ray", "ok", f"Ray {ray['version']} starts and runs a task")


def _torch(torch: dict[str, Any] | str) -> Iterator[CheckFinding]:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if isinstance(torch, str):
        yield CheckFinding(
            "torch",
            "fail",
            f"torch cannot be loaded: {torch}",
            "reinstall it: pip install --force-reinstall 'torch>=2.4'",
        )
        return
    said = f"torch {torch['version']} with {torch['threads']} threads on {cores} cores"
    if torch["threads"] > cores:
        yield CheckFinding(
            "torch",
            "warn",
            said,
            f"export OMP_NUM_THREADS={cores}: more threads than cores slow each other down",
        )
    else:
        yield CheckFinding("torch", "ok", said)
    if torch["devices"]:
        yield CheckFinding(
            "gpu", "ok", f"{len(torch['devices'])} GPUs: {', '.join(sorted(set(torch['devices'])))}"
        )
    elif shutil.which("nvidia-smi"):
        yield CheckFinding(
            "gpu",
            "warn",
            "there is an NVIDIA driver, but torch sees no GPU",
            "install a CUDA build of torch (https://pytorch.org/get-started), or check CUDA_VISIBLE_DEVICES",
        )
    else:
        yield CheckFinding("gpu", "ok", "no GPU here; training uses the CPU")


def plugins(*, quick: bool) -> Iterator[CheckFinding]:
    """Check every plug-in of other packages and, unless ``quick``, load its rule."""
    from hpo.past_runs.importers import IMPORTERS
    from hpo.planning.schedulers import SCHEDULERS
    from hpo.study.samplers import SAMPLERS
    from hpo.study.trackers import TRACKERS
    from search_spaces.plugins import installed
    from search_spaces.techniques import TECHNIQUES
    from trainers.workloads.described import WORKLOADS

    registries: tuple[PluginRegistry[Any], ...] = (
        *(*TECHNIQUES.values(), SAMPLERS, SCHEDULERS, WORKLOADS, IMPORTERS, TRACKERS),
    )
    for registry in registries:
        yield from _plugins_of(registry)
    known = {(registry.kind, registry.part) for registry in registries}
    for plugin in installed():
        if (plugin.kind, plugin.part) not in known:
            parts = " or ".join(f"{part}.{plugin.name}" for _, part in sorted(known) if part)
            names = parts if plugin.kind == "schedules" else "a name without a dot"
            fault = plugin.error(f"has a name under which nothing looks for it; it must be {names}")
            yield CheckFinding(
                "plug-in", "fail", str(fault), "report it to its author, or uninstall it"
            )
    if quick or not any(registry.plugins() for registry in registries):
        return
    rules = probe(RULES_OF_PLUGINS)
    if isinstance(rules, str):
        yield CheckFinding("plug-in", "warn", f"plug-ins could not be checked: {rules}")
    else:
        for fault in rules["faults"]:
            yield CheckFinding("plug-in", "fail", fault, "report it to its author, or uninstall it")


def _plugins_of(registry: PluginRegistry[Any]) -> Iterator[CheckFinding]:
    faults = registry.faults()
    for fault in faults:
        yield CheckFinding(
            "plug-in", "fail", str(fault), "report it to its author, or uninstall it"
        )
    refused = {str(fault).split(" of the package ")[0] for fault in faults}
    for plugin in registry.plugins():
        if f"the plug-in {plugin}".split(" of the package ")[0] not in refused:
            yield CheckFinding("plug-in", "ok", str(plugin))


def probe(program: str, seconds: float = PROBE_SECONDS) -> dict[str, Any] | str:
    """Run a Python program; return its last output line parsed as JSON, or the reason why there is none. The program's
    child processes are ended.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"
    }  # use this machine's Ray
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            stdout=out,
            stderr=err,
            start_new_session=True,
            env=environment,
        )
        try:
            process.wait(seconds)
            found: dict[str, Any] = json.loads(_last_line(out))
            return found
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:g} s"
        except ValueError:
            return _last_line(err)[:300] or f"exit code {process.returncode}"
        finally:
            _end(process)


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    return (file.read().strip().splitlines() or [""])[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its child processes, which are in a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def storage_of(url: str) -> list[CheckFinding]:
    """Check whether the database can be used."""
    from storage.maintenance.probe import probe_database

    return probe_database(url)


def disk(folder: Path, storage: str) -> Iterator[CheckFinding]:
    """Check the free space for checkpoints, the database and Ray's objects."""
    places = {"checkpoints": folder.absolute()}
    if not re.match(r"[a-z+0-9]+://", storage) or storage.startswith("sqlite"):
        places["database"] = Path(re.sub(r"^sqlite[^:]*:///", "", storage)).absolute().parent
    for name, place in places.items():
        there = next(each for each in (place, *place.parents) if each.exists())
        free = shutil.disk_usage(there).free
        said = f"{free / 2**30:.1f} GiB free at {there} for {name}"
        if not os.access(there, os.W_OK):
            yield CheckFinding(
                "disk",
                "fail",
                f"{there} is not writable ({name})",
                "give another folder, or allow writing to this one",
            )
        elif free < LITTLE_BYTES:
            yield CheckFinding(
                "disk",
                "fail" if free < TOO_LITTLE_BYTES else "warn",
                said,
                "free some space: `hpo db prune`, then `hpo db vacuum`",
            )
        else:
            yield CheckFinding("disk", "ok", said)
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < SHARED_MEMORY_BYTES:
        yield CheckFinding(
            "shared memory",
            "warn",
            f"/dev/shm holds {shutil.disk_usage(shared).total / 2**20:.0f} MiB; Ray puts its "
            f"objects on disk instead, which is slow",
            "in a container: docker run --shm-size=2g",
        )


def network(port: int) -> Iterator[CheckFinding]:
    """Check the port of a server, and whether processes of this machine reach each other."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            yield CheckFinding("ports", "ok", f"port {port} is free for `hpo serve`")
        except OSError as error:
            yield CheckFinding(
                "ports",
                "warn",
                f"port {port} cannot be used: {error.strerror}",
                "if no `hpo serve` is running there: hpo serve --port 0 takes a free port",
            )
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=5),
        ):
            socket.getaddrinfo(socket.gethostname(), None)
        yield CheckFinding(
            "network",
            "ok",
            f"processes reach each other, and {socket.gethostname()!r} has an address",
        )
    except OSError as error:
        yield CheckFinding(
            "network",
            "fail",
            f"worker processes would not find each other: {error}",
            f"allow connections to 127.0.0.1, and add {socket.gethostname()!r} to /etc/hosts",
        )


def server(environment: Mapping[str, str]) -> Iterator[CheckFinding]:
    """Check the server of HPO_SERVER, if set."""
    if not environment.get("HPO_SERVER"):
        return
    from hpo.client.client import Client
    from hpo.client.retries import RetryPolicy
    from hpo.errors import HpoError

    try:
        with Client(
            environment["HPO_SERVER"], environment.get("HPO_TOKEN"), retries=RetryPolicy(attempts=2)
        ) as client:
            who = client.document("me")
        yield CheckFinding(
            "server", "ok", f"{client.url} accepts the token of {who.get('owner', 'somebody')}"
        )
    except HpoError as error:
        message, _, way_out = str(error).partition("; ")
        yield CheckFinding("server", "fail", message, way_out or "check HPO_SERVER and HPO_TOKEN")
