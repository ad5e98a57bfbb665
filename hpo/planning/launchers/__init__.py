"""How a plan is started on a machine: a scheduler each, as functions from a plan to a script that a person can read."""

from __future__ import annotations

from collections.abc import Callable

from hpo.errors import PlanError
from hpo.planning.launchers import flux, grid_engine, local, lsf, mpi, pbs, ray_jobs, slurm
from hpo.planning.launchers.run import Run, run_of
from hpo.planning.launchers.script import Scheduler, script
from hpo.planning.machines import Machine
from hpo.planning.plan import Plan

SCHEDULERS: dict[str, Callable[[Run], Scheduler]] = {
    "slurm": slurm.scheduler,
    "lsf": lsf.scheduler,
    "pbs": pbs.scheduler,
    "flux": flux.scheduler,
    "grid_engine": grid_engine.scheduler,
    "other": mpi.scheduler,
    "local": local.scheduler,
}
LAUNCHERS = (*SCHEDULERS, "ray")
"""Every launcher that a plan can name; ``other`` is a machine without a scheduler."""


def script_name(launcher: str) -> str:
    """The name of a launcher's script in the folder of a plan."""
    return ray_jobs.SCRIPT if launcher == "ray" else "launch.sh"


def script_of(plan: Plan, machine: Machine | None, *, backend: str) -> tuple[str, str]:
    """The name and the text of a plan's launch script; :class:`PlanError` for a launcher that there is not.

    ``machine`` is None where nothing more is known of it than its name.
    """
    run = run_of(plan, machine, backend)
    if plan.launcher == "ray":
        return script_name(plan.launcher), ray_jobs.script(run)
    if plan.launcher not in SCHEDULERS:
        raise PlanError(f"there is no launcher {plan.launcher!r}; there are {', '.join(LAUNCHERS)}")
    return script_name(plan.launcher), script(run, SCHEDULERS[plan.launcher](run))
