"""PBS Pro and OpenPBS: ``qsub launch.sh``, with ranks started by ``mpiexec`` or ``aprun``.

See the PBS Professional User's Guide.
"""

from __future__ import annotations

from hpo.planning.launchers.mpi import START
from hpo.planning.launchers.run import clock
from hpo.planning.launchers.script import HANDED, JobArray, Scheduler, SlotFacts, replace_directives

FUNCTIONS = """\
healthy_hosts() {  # the hosts of this job that are neither down nor offline
  comm -23 <(sort -u "$PBS_NODEFILE") <(pbsnodes -l 2>/dev/null | awk '{print $1}' | sort -u)
}
resubmit() {  # the new job waits for this one to end
  qsub -W depend=afterany:"$PBS_JOBID" -v "$(handed)" ${account:+-A "$account"} ${partition:+-q "$partition"} launch.sh
}
"""


def scheduler(run: SlotFacts) -> Scheduler:
    """Return the directives and functions for PBS; the script watches the time, as PBS gives no notice of the limit."""
    gpus = f":ngpus={run.accelerators}" if run.accelerators else ""
    directives = (
        f"#PBS -N {run.name}",
        f"#PBS -l select={run.nodes}:ncpus={run.ranks}:mpiprocs={run.ranks}{gpus}",
        "#PBS -l place=scatter:excl",
        f"#PBS -l walltime={clock(run.slot_seconds)}",
        "#PBS -j oe",
        "#PBS -r y",
        "# YOURS, if the site requires them (remove one #), or `hpo launch --account A --partition P`;",
        "# ncpus above is one core per rank: replace it with a node's number of cores",
        "##PBS -A ACCOUNT",
        "##PBS -q QUEUE",
    )

    def array(agents: int) -> JobArray:
        several = (f"#PBS -J 0-{agents - 1}",) if agents > 1 else ()  # PBS rejects arrays of one
        tasks = {"#PBS -l place=": ("#PBS -l place=free", *several)}
        return JobArray(replace_directives(directives, tasks), "${PBS_ARRAY_INDEX:-0}")

    return Scheduler(
        submit="qsub launch.sh",
        folder="${PBS_O_WORKDIR:-.}",
        job="$PBS_JOBID",
        notice=False,
        functions=HANDED + FUNCTIONS + START,
        directives=directives,
        array=array,
    )
