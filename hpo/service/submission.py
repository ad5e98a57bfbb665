"""Rules for submitted studies: workloads that the server allows, data in its folders, built-in machines.

``hpo.study.spec`` parses the text, limits its size, depth and aliases, and imports nothing. The checks here need the
server's configuration. A worker checks the data again when it runs the study (:func:`faults_of_submitted_data`), as
links may have changed since.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import MOST_FAULTS, PlanError, SpecError
from hpo.planning.machines import load_machine
from hpo.runs.checks import check_full_scale, trainings_tell_memory
from hpo.service.config import ServerConfig, ServiceLimits
from hpo.study.faults import dotted_location, shown_value
from hpo.study.spec import StudySpec, check_study_constraints, check_study_target, parse_study
from search_spaces.names import did_you_mean
from trainers.workloads.described import WORKLOADS, described_workload

PATH_OPTIONS = ("path", "folder", "file", "directory", "root", "dir")
METRICS_SECONDS = 60.0
MOST_PATHS = 100
LONGEST_NAME = 200
LONGEST_PATH = 4096
"""Maximum length of a path in characters: Linux opens no longer paths, and resolving their links may take minutes."""


def read_submission(
    text: str,
    config: ServerConfig,
    metrics_of: Callable[[str], Mapping[str, bool] | None] | None = None,
) -> StudySpec:
    """Read a study from text received over the network; raise :class:`SpecError` with every error.

    Errors that only a new study must not have are left to :meth:`hpo.study.spec.StudySpec.check_new`.
    ``metrics_of`` returns the metrics of an allowed workload, as :func:`submitted_workload_metrics` does.
    """
    spec = parse_study(text)
    wrong = itertools.islice(_faults(spec, config), MOST_FAULTS + 1)
    found = [spec.error(message, *location) for location, message in wrong]
    if found:
        raise SpecError([fault for error in found for fault in error.faults])
    metrics = (
        spec.program.options.metrics
        if spec.program
        else (metrics_of or submitted_workload_metrics)(spec.workload)
    )
    if metrics is not None:
        check_study_target(spec, metrics)
        check_study_constraints(spec, metrics, memory=trainings_tell_memory(spec))
    check_full_scale(spec)
    return spec


def _faults(spec: StudySpec, config: ServerConfig) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if spec.workload not in config.workloads:
        yield (
            ("workload",),
            (
                f"workload must be one that this server allows ({', '.join(config.workloads)}), but got "
                f"{shown_value(spec.workload)}{did_you_mean(spec.workload, config.workloads)}; its configuration "
                "lists them under workloads"
            ),
        )
    elif ":" not in spec.workload and spec.workload not in WORKLOADS:
        yield (
            ("workload",),
            f"there is no workload {shown_value(spec.workload)}{WORKLOADS.explain(spec.workload)}",
        )
    yield from faults_of_submitted_data(spec.data, config.data_folders)
    for option in described.writes if (described := described_workload(spec.workload)) else ():
        if option in spec.data:
            yield (
                ("data", option),
                f"data.{option} must not be set on a server, because studies may not write to "
                f"the folders they read; leave it out, and generated samples go to the "
                f"worker's cache",
            )
    for name in spec.data:
        if len(name) > LONGEST_NAME:
            yield (
                ("data",),
                f"the names of data options must have at most {LONGEST_NAME} characters, but "
                f"got {shown_value(name)}",
            )
    limits, full = config.limits, spec.full_scale
    yield from _faults_of_size(spec, limits)
    if full is None:
        return
    fault = fault_of_submitted_machine(full.machine)
    if fault:
        yield ("full_scale", "machine"), f"full_scale.{fault}"
    most = limits.launch_workers or os.cpu_count() or 1
    if full.validate_plan and (full.workers or 1) > most:
        yield (
            ("full_scale", "workers"),
            (
                f"full_scale.workers must be at most {most} if the server's workers run the "
                f"plan, but got {full.workers:,}"
            ),
        )


def _faults_of_size(
    spec: StudySpec, limits: ServiceLimits
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield an error for each number above the limits of a study, before the study runs."""
    budget, data = spec.budget, spec.data
    evaluations = math.ceil(budget.epochs_per_trial * budget.evaluations_per_epoch)
    asked: list[tuple[tuple[str | int, ...], float, float, str]] = [
        (("budget", "trials"), budget.trials, limits.trials, ""),
        (("budget", "epochs_per_trial"), budget.epochs_per_trial, limits.epochs, ""),
        (
            ("budget", "evaluations_per_epoch"),
            evaluations,
            limits.evaluations,
            " evaluations in all epochs of a trial",
        ),
        (
            ("budget", "trials"),
            budget.trials * evaluations,
            limits.points,
            " evaluations of all trials",
        ),
    ]
    described = described_workload(spec.workload)
    for demand in (
        described.demands(data, budget.epochs_per_trial, min(spec.ladder)) if described else ()
    ):
        asked.append((demand.place, demand.amount, getattr(limits, demand.limit), demand.what))
    for location, value, most, what in asked:
        if not value <= most:
            yield (
                location,
                f"{dotted_location(location)} must ask for at most {most:,}{what} on this server, "
                f"but got {value:,.12g}",
            )


def faults_of_submitted_data(
    data: Mapping[str, Any],
    folders: Sequence[Path],
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield an error for each path in a study's ``data`` section that is outside ``folders``, with links resolved."""
    roots = [folder.resolve() for folder in folders]
    for number, (location, text) in enumerate(_paths(data, ("data",))):
        if number >= MOST_PATHS:
            yield (
                ("data",),
                f"data must name at most {MOST_PATHS} files and folders, but got more",
            )
            return
        reason = _outside(text, roots)
        if reason and not roots:
            yield (
                location,
                (
                    f"{dotted_location(location)} names a file or folder, but this server's "
                    f"configuration has no data_folders that studies may read, and {reason}"
                ),
            )
        elif reason:
            yield (
                location,
                (
                    f"{dotted_location(location)} must be an absolute path within one of the server's data_folders "
                    f"({', '.join(map(str, folders))}), but {reason}"
                ),
            )


def fault_of_submitted_machine(name: str) -> str | None:
    """Return an error message unless a name from the network is that of a built-in machine."""
    names = machine_names()
    if name in names:
        return None
    return (
        f"machine must be one of the built-in machines ({', '.join(names)}), but got {shown_value(name)}"
        f"{did_you_mean(name, names)}"
    )


def machine_names() -> list[str]:
    """Return the machines that plans can be made for, ``local`` first."""
    from hpo.planning import machines

    shipped: Any = getattr(machines, "machine_names", list)
    return list(dict.fromkeys(["local", *shipped()]))


def built_in_machine(name: str) -> Any:
    """Return the built-in machine of this name; raise :class:`PlanError` for any other name."""
    fault = fault_of_submitted_machine(name)
    if fault:
        raise PlanError(fault)
    return load_machine(name)


@functools.lru_cache(maxsize=64)
def submitted_workload_metrics(workload: str) -> dict[str, bool] | None:
    """Return the metrics of an allowed workload; None if they cannot be determined here, for example without torch.

    A separate process reads them: neither torch nor the code of a workload is loaded into the server.
    """
    program = (
        "import json, sys; from trainers.workloads import metrics_of; "
        "print(json.dumps(dict(metrics_of(sys.argv[1]))))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, workload],
            capture_output=True,
            text=True,
            check=True,
            timeout=METRICS_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        return {
            str(name): bool(better)
            for name, better in json.loads(done.stdout.splitlines()[-1]).items()
        }
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _paths(
    value: Any, location: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        named = any(part in PATH_OPTIONS for part in location[1:])
        if (
            named
            or "/" in value
            or "\\" in value
            or os.sep in value
            or value.startswith(("~", "."))
        ):
            yield location, value
        return
    entries = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, entry in entries:
        yield from _paths(entry, (*location, key))


def _outside(text: str, roots: Sequence[Path]) -> str | None:
    if len(text) > LONGEST_PATH:
        return (
            f"a path must have at most {LONGEST_PATH:,} characters, but {shown_value(text)} has "
            f"{len(text):,}"
        )
    try:
        path = Path(text)
        if not path.is_absolute():
            return f"got {shown_value(text)}"
        resolved = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # NUL bytes, circular links
        return f"{shown_value(text)} is not a usable path: {error}"
    return (
        None if any(resolved.is_relative_to(root) for root in roots) else f"got {shown_value(text)}"
    )
