"""Checks whether a study can run here: its workload, its data, and the plan that it requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo.errors import PlanError
from hpo.planning.machines import load_machine
from hpo.planning.placement.feasibility import check_layout
from hpo.planning.plan import planned_job
from hpo.study.jobs import search_path, sizes_of_model, workload_data
from hpo.study.program import program_reads_seed
from hpo.study.samplers import SAMPLERS
from hpo.study.sizes import SAMPLES, points, sizes_in_words
from hpo.study.spec import StudySpec, check_study_constraints, check_study_target
from search_spaces.settings import TrainingSettings
from trainers.errors import TrainerError
from trainers.workloads.described import described_workload

if TYPE_CHECKING:
    from trainers.workloads import AnyWorkload


def check_workload(spec: StudySpec) -> AnyWorkload:
    """Open the study's workload with its data; raise :class:`SpecError` if the workload, its data or its metric is
    missing.
    """
    from trainers.workloads import check_own_settings, load_workload, metrics_of, workload_class

    data = workload_data(spec)
    try:
        metrics = metrics_of(spec.workload, search_path(spec), data)
    except TrainerError as error:
        raise spec.error(str(error), "workload") from error
    check_study_target(spec, metrics)
    check_study_constraints(spec, metrics, memory=trainings_tell_memory(spec))
    try:
        workload = load_workload(spec.workload, data, search_path(spec))
    except TrainerError as error:
        raise spec.error(str(error), "data") from error
    described = described_workload(spec.workload)
    grows = () if described is None else described.grows
    read = [name for name in spec.sizes if name not in (*grows, SAMPLES)]
    for point in points(spec) if spec.sizes else []:
        sized = {**data, **sizes_of_model(spec, point)}
        try:
            workload_class(spec.workload, search_path(spec))(sized)
        except TrainerError as error:
            raise spec.error(f"at {sizes_in_words(point)}: {error}", "ladder") from error
    try:
        check_own_settings(workload, spec.workload, dict.fromkeys([*spec.search.own_names, *read]))
    except TrainerError as error:
        raise spec.error(str(error), "search") from error
    return workload


def trainings_tell_memory(spec: StudySpec) -> bool:
    """Return whether trials report their memory use: PyTorch trials do, and so do programs that measure it."""
    described = described_workload(spec.workload)
    return described is None or described.needs_torch or bool(spec.program)


def check_full_scale(spec: StudySpec) -> None:
    """Raise :class:`SpecError`, before anything is trained, if the full-scale run could not be planned."""
    full = spec.full_scale
    if full is None:
        return
    try:
        machine = load_machine(full.machine)
        fixed = {
            name: value
            for name, value in spec.search.fixed.items()
            if name == "normalization_batch_size"
        }
        job = planned_job(spec, TrainingSettings.from_dict(fixed), full.global_batch_size, None)
        check_layout(job, machine, full.nodes, full.workers)
    except PlanError as error:
        raise spec.error(str(error), "full_scale") from error
    raced = spec.race_batch is not None and not SAMPLERS[spec.sampler].chooses_rung
    if raced and not program_reads_seed(spec.program):
        raise spec.error(
            f"the command must contain {{seed}}: the race at {spec.race_batch} repeats the "
            f"best settings with other seeds; add it, or switch the race off (budget: {{race: 0}})",
            "program",
            "command",
        )
    if full.validate_plan and full.machine != "local":
        raise spec.error(
            f"validate runs the plan on this machine, but full_scale.machine is {full.machine!r}; "
            "leave validate out, and store the outcome with `hpo record`",
            "full_scale",
            "validate",
        )
