"""Torque: ``qsub launch.sh``, ranks by ``mpiexec``. See qsub(1B) of Torque and its page "Requesting resources".

Its commands and variables are those of PBS, whose functions it takes; it asks for nodes in another way.
"""

import dataclasses

from hpo.planning.launchers import pbs
from hpo.planning.launchers.run import Run, clock
from hpo.planning.launchers.script import Scheduler


def scheduler(run: Run) -> Scheduler:
    """Directives for Torque; the script itself watches the time."""
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
