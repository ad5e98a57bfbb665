"""Turns a study's specification into the jobs that a trainer runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpo.study.sizes import Point, full_scale_sizes, length_share, sizes_of_settings
from hpo.study.spec import StudySpec
from search_spaces.domains import Categorical
from search_spaces.plugins import PluginError
from search_spaces.settings import TrainingSettings
from search_spaces.techniques.parametrizations import MODEL_SIZES
from trainers.job import LENGTH, TrainingJob
from trainers.workloads.described import WORKLOADS, described_workload


def search_path(spec: StudySpec) -> str:
    """Return the folder in which a study's own modules and data are looked up: the folder of its file, or the current
    folder.
    """
    return str(Path(spec.search_path or ".").absolute())


def workload_data(spec: StudySpec) -> dict[str, Any]:
    """Return the options for opening the study's workload: ``data``, with its path made absolute so that workers can
    start in any folder.

    For a program, the options are the section ``program``, with its cost evaluated at full scale.
    """
    if spec.program is not None:
        plain = spec.program.to_plain()
        figures = spec.program.options.figures(dict(full_scale_sizes(spec)))
        return plain if figures is None else {**plain, "cost": figures}
    data = dict(spec.data)
    data |= sizes_of_model(spec, full_scale_sizes(spec))
    if isinstance(data.get("path"), str):
        data["path"] = str(Path(search_path(spec), data["path"]))
    return data


def sizes_of_model(spec: StudySpec, point: Point) -> dict[str, int]:
    """Return the sizes that are options in the workload's ``data``; custom classes and programs read their sizes as
    settings.
    """
    described = described_workload(spec.workload)
    if described is None:
        return {}
    return {described.size_option(name): size for name, size in point if name in described.grows}


def check_sizes_known(spec: StudySpec) -> None:
    """Raise :class:`SpecError` if a job of the study would lack its model's sizes, because the plug-in with its
    workload is missing here or cannot be used.
    """
    if not any(name in MODEL_SIZES for name in spec.sizes) or ":" in spec.workload:
        return
    try:
        WORKLOADS[spec.workload]
    except (KeyError, PluginError) as error:
        reason = error if isinstance(error, PluginError) else "it is not installed here"
        raise spec.error(
            f"the workload {spec.workload!r}, whose sizes the ladder varies, cannot be used: {reason}",
            "workload",
        ) from error


def trial_folder(folder: Path, study_id: int, number: int) -> Path:
    """Return the folder for a program's files in one trial, inside the folder in which the study is run."""
    return folder / "trials" / str(study_id) / str(number)


def said_train_samples(spec: StudySpec) -> int | None:
    """Return the training set's size if the study file states it in the section of its program or its data."""
    if spec.program is not None:
        return spec.program.train_samples
    return spec.data.get("train_samples")


def agent_folder(folder: Path, name: str) -> Path:
    """Return the folder for the checkpoints and programs' files of agents that train the study of this name."""
    segment = quote(name, safe="")
    return folder / "agents" / (segment.replace(".", "%2E") if name in (".", "..") else segment)


def some_settings(spec: StudySpec) -> TrainingSettings:
    """Return settings with the lowest value of every tuned number and the first value of every tuned choice."""
    return spec.search.settings(
        {
            name: domain.values[0] if isinstance(domain, Categorical) else domain.low
            for name, domain in spec.search.domains.items()
        }
    )


def model_sizes_of_job(spec: StudySpec, job: TrainingJob) -> dict[str, int]:
    """Return the model sizes, of those that grow in the study, with which a job trains."""
    described = described_workload(spec.workload)
    found = {}
    for name, full in full_scale_sizes(spec):
        if name == LENGTH:
            continue
        of_model = described is not None and name in described.grows
        option = described.size_option(name) if described is not None else name
        read_from: Mapping[str, Any] = job.data if of_model else job.settings.own
        found[name] = int(read_from.get(option, full))
    return found


def training_job(
    spec: StudySpec,
    settings: TrainingSettings,
    global_batch_size: int,
    seed: int,
    epochs: float | None = None,
) -> TrainingJob:
    """Return the job of one training run; ``epochs`` is its budget, by default the study's budget per trial.

    Its sizes are read from the ``own`` settings and default to full scale.
    """
    data = workload_data(spec)
    if spec.sizes:
        point = sizes_of_settings(spec, settings.own)
        data |= sizes_of_model(spec, point)
        described = described_workload(spec.workload)
        of_model = () if described is None else described.grows
        kept = {name: value for name, value in settings.own.items() if name not in dict(point)}
        read = {name: size for name, size in point if name not in of_model and name != LENGTH}
        settings = dataclasses.replace(settings, own={**kept, **read})
        if epochs is None:
            epochs = length_share(spec, point) * spec.budget.epochs_per_trial
    return TrainingJob(
        workload=spec.workload,
        data=data,
        target=spec.target.aim,
        settings=settings,
        global_batch_size=global_batch_size,
        seed=seed,
        epochs=spec.budget.epochs_per_trial if epochs is None else epochs,
        evaluations_per_epoch=spec.budget.evaluations_per_epoch,
        search_path=search_path(spec),
    )
