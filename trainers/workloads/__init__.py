"""Look up workloads by name: the workloads in ``described``, and users' classes as ``package.module:Class``."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.names import did_you_mean
from search_spaces.plugins import PluginError
from search_spaces.settings import names as setting_names
from trainers.errors import WorkloadError
from trainers.feed.streams import Part
from trainers.job import TrainingJob
from trainers.workloads.described import WORKLOADS
from trainers.workloads.workload import (
    AnyWorkload,
    Batch,
    CustomLoopWorkload,
    StreamWorkload,
    Workload,
    check_options,
)

__all__ = [
    "AnyWorkload",
    "Batch",
    "CustomLoopWorkload",
    "Part",
    "StreamWorkload",
    "Workload",
    "check_options",
    "check_own_settings",
    "load_model_workload",
    "load_workload",
    "metrics_of",
    "workload_class",
]


def load_workload(
    name: str, data: Mapping[str, Any], search_path: str | None = None
) -> AnyWorkload:
    """Build the workload from its data; raises WorkloadError or :class:`~trainers.errors.DataError`."""
    workload = workload_class(name, search_path)(data)
    workload.data_options = dict(data)
    for attribute in (
        ("train_samples", "evaluation_samples")
        if isinstance(workload, Workload)
        else ("train_samples",)
    ):
        count = getattr(workload, attribute, None)
        if not isinstance(count, int) or count < 1:
            raise WorkloadError(
                f"{name}.{attribute} must be a whole number of at least 1, but got "
                f"{count!r}; set it in __init__"
            )
    return workload


def load_model_workload(job: TrainingJob) -> Workload:
    """Return the workload of a job whose model is trained here; raises WorkloadError if it has its own loop."""
    workload = load_workload(job.workload, job.data, job.search_path)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"the workload {job.workload!r} has its own training loop, without a PyTorch "
            f"model; start it with trainers.begin.begin_training"
        )
    return workload


def metrics_of(
    name: str, search_path: str | None = None, data: Mapping[str, Any] | None = None
) -> Mapping[str, bool]:
    """Return a workload's metrics for these data options, and whether higher values are better; reads no data."""
    return workload_class(name, search_path).metrics_of(data or {})


def check_own_settings(workload: AnyWorkload, name: str, settings: Mapping[str, Any]) -> None:
    """Raise :class:`WorkloadError`, with the nearest name, if a workload does not read one of ``settings``."""
    known = workload.own_settings_of(workload.data_options or {})
    for setting in settings:
        if known is not None and setting not in known:
            readable = f"; it reads {', '.join(known)}" if known else "; it reads none"
            raise WorkloadError(
                f"the workload {name!r} does not read the setting {setting!r}"
                f"{did_you_mean(setting, (*known, *setting_names())) or readable} (own_settings in its class)"
            )


def workload_class(name: str, search_path: str | None = None) -> type[AnyWorkload]:
    """Return the class of a workload; ``search_path`` is the folder searched first for a user's module.

    Raises :class:`WorkloadError` if no workload has this name, or if the class lacks a required definition.
    """
    try:
        rule = WORKLOADS[name].rule if name in WORKLOADS else name
    except PluginError as error:
        raise WorkloadError(f"the workload {name!r} cannot be used: {error}") from error
    module_name, colon, class_name = rule.partition(":")
    if not (module_name and colon and class_name):
        hint = WORKLOADS.explain(name) or f"; the choices are {', '.join(WORKLOADS)}"
        raise WorkloadError(
            f"there is no workload {name!r}{hint}; name your own class as 'package.module:Class'"
        )
    found = getattr(_import(module_name, name, search_path), class_name, None)
    if not (isinstance(found, type) and issubclass(found, AnyWorkload)):
        what = f"{module_name} has no {class_name}" if found is None else f"it is {found!r}"
        raise WorkloadError(
            f"{name!r} must name a subclass of trainers.workloads.Workload, but {what}"
        )
    missing = sorted(found.__abstractmethods__)
    if issubclass(found, Workload) and not _scores(found):
        missing.append("score")
    if missing:
        raise WorkloadError(f"{name!r} must define {', '.join(missing)}")
    if getattr(found, "metrics", {}).get("loss") is not False:
        raise WorkloadError(
            f"{name}.metrics must contain 'loss': False, the evaluation loss, in addition to the others"
        )
    return found


def _scores(workload: type[Workload]) -> bool:
    """Return whether a workload defines its evaluation, either by ``score`` or by ``counts`` and ``metrics_from``."""
    by_counts = (
        workload.counts is not Workload.counts
        and workload.metrics_from is not Workload.metrics_from
    )
    return by_counts or workload.score is not Workload.score


def _import(module_name: str, name: str, search_path: str | None) -> Any:
    try:
        with _importing:  # one thread must not remove modules that another imports
            if search_path is not None:
                _look_first_in(search_path)
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise WorkloadError(
                f"the module of workload {name!r} needs {error.name!r}, which is not installed"
            ) from error
        where = f"in {search_path} or " if search_path else ""
        raise WorkloadError(
            f"cannot import {module_name!r} for workload {name!r}: there is no such module "
            f"{where}on the Python path"
        ) from error
    except Exception as error:
        raise WorkloadError(
            f"importing {module_name!r} for workload {name!r} failed: "
            f"{type(error).__name__}: {error}"
        ) from error


@dataclass
class _Search:
    """The folder searched first for users' modules, and the modules imported before this folder was set."""

    folder: str = ""
    before: frozenset[str] = frozenset()
    added: bool = False


_search, _importing = _Search(), threading.RLock()
_OURS = ("hpo", "search_spaces", "storage", "trainers")


def _look_first_in(folder: str) -> None:
    """Search this folder first for modules, and unload the modules that came from the previous folder.

    Otherwise, a process that runs many studies could give a study another study's module of the same name.
    """
    if _search.folder == folder:
        return
    if _search.folder:
        root = Path(_search.folder)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if (
                name not in _search.before
                and name.partition(".")[0] not in _OURS
                and isinstance(file, str)
                and Path(file).is_relative_to(root)
                and not Path(file).is_relative_to(sys.prefix)
            ):
                del sys.modules[name]
        if _search.added and _search.folder in sys.path:
            sys.path.remove(_search.folder)
    _search.folder, _search.before = folder, frozenset(sys.modules)
    _search.added = folder not in sys.path
    if _search.added:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
