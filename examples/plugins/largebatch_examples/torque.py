"""Torque: ``qsub launch.sh`` submits and ``mpiexec`` starts the ranks; see qsub(1B) and "Requesting resources".

Torque has the same commands and variables as PBS, so the functions for PBS are reused; only node requests differ.
"""

import dataclasses

from hpo.planning.launchers import pbs
from hpo.planning.launchers.run import Run, clock
from hpo.planning.launchers.script import Scheduler


def scheduler(run: Run) -> Scheduler:
    """Return the directives for Torque; the script itself watches the time limit."""
    gpus = f":gpus={run.accelerators}" if run.accelerators else ""
    return dataclasses.replace(
        pbs.scheduler(run),
        array=None,
        directives=(
            f"#PBS -N {run.name}",
            f"#PBS -l nodes={run.nodes}:ppn={run.ranks}{gpus}",
            f"#PBS -l walltime={clock(run.slot_seconds)}",
            "#PBS -n",  # no other jobs on these nodes
            "#PBS -j oe",
            "#PBS -r y",
        ),
    )
