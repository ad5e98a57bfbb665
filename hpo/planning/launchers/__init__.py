"""Launchers, which start a plan on a machine: one module per scheduler turns a plan into a readable script."""

from __future__ import annotations

from hpo.errors import PlanError
from hpo.planning.launchers.run import Run, run_of_plan
from hpo.planning.launchers.script import Scheduler, SlotFacts, launch_script
from hpo.planning.machines import Machine
from hpo.planning.plan import Plan
from hpo.planning.schedulers import SCHEDULERS, SchedulerDescription
from search_spaces.plugins import PluginError, load_attribute


def launcher_description(launcher: str) -> SchedulerDescription:
    """Return the description of a launcher; raise :class:`PlanError` if it does not exist or cannot be used."""
    try:
        return SCHEDULERS[launcher]
    except PluginError as error:
        raise PlanError(f"the launcher {launcher!r} cannot be used: {error}") from error
    except KeyError:
        raise PlanError(
            f"there is no launcher {launcher!r}; the choices are {', '.join(SCHEDULERS)}{SCHEDULERS.explain(launcher)}"
        ) from None


def launch_script_name(launcher: str) -> str:
    """Return the name of a launcher's script in the folder of a plan."""
    return launcher_description(launcher).script


def launch_script_of_plan(plan: Plan, machine: Machine | None, *, backend: str) -> tuple[str, str]:
    """Return the name and the text of a plan's launch script; raise :class:`PlanError` for an unknown launcher.

    ``machine`` is None if only its name is known.
    """
    its, run = launcher_description(plan.launcher), run_of_plan(plan, machine, backend)
    made = scheduler_of_launcher(plan.launcher, run)
    return its.script, made if isinstance(made, str) else launch_script(run, made)


def scheduler_of_launcher(launcher: str, facts: Run | SlotFacts) -> Scheduler | str:
    """Return what a scheduler adds to a script, or the whole script; raise :class:`PlanError` if a plug-in fails."""
    rule = launcher_description(launcher).rule
    try:
        make = load_attribute(rule)
    except Exception as error:
        raise PlanError(
            f"the launcher {launcher!r} cannot be used: {rule} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        made = make(facts)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise PlanError(
            f"the launcher {launcher!r} cannot be used: {rule} failed: {error}"
        ) from error
    if not isinstance(made, (Scheduler, str)):
        raise PlanError(
            f"the launcher {launcher!r} cannot be used: {rule} must give a Scheduler, but gave {made!r:.100}"
        )
    return made
