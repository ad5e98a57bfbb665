"""LSF with IBM's job step manager, as on Summit: ``bsub < launch.sh``, with ranks started by ``jsrun``.

See IBM's reference for bsub (-W, -wa, -wt, -nnodes, -alloc_flags) and for jsrun, and the Summit User Guide.
"""

from __future__ import annotations

from hpo.planning.launchers.script import (
    JobArray,
    Scheduler,
    SlotFacts,
    replace_directives,
    whole_minutes,
)

FUNCTIONS = """\
healthy_hosts() {  # the compute nodes; the first line is the node that this script runs on. jsrun cannot exclude
  # a node by name, so after a lost node the run continues in another slot
  grep -vxF "$(head -n 1 "$LSB_DJOB_HOSTFILE")" "$LSB_DJOB_HOSTFILE" | sort -u
}
start() {  # PER_NODE COMMAND...: one resource set per node, with all of its cores and GPUs
  local per_node=$1
  shift
  jsrun --nrs="${#hosts[@]}" --rs_per_host=1 --tasks_per_rs="$per_node" --cpu_per_rs=ALL_CPUS --gpu_per_rs=GPUS \\
    --bind=none --exit_on_error=1 "$@"
}
resubmit() {  # the new job waits for this one to end; bsub passes on the environment
  bsub -w "ended($LSB_JOBID)" ${account:+-P "$account"} ${partition:+-q "$partition"} < launch.sh
}
"""


def scheduler(run: SlotFacts) -> Scheduler:
    """Return the directives and functions for LSF."""
    limit = whole_minutes(run.slot_seconds)
    nvme = ("#BSUB -alloc_flags NVME",) if run.data_path is not None else ()
    directives = (
        f"#BSUB -J {run.name}",
        f"#BSUB -nnodes {run.nodes}",
        f"#BSUB -W {limit // 60:02d}:{limit % 60:02d}",
        "#BSUB -wa USR1",
        f"#BSUB -wt {whole_minutes(run.notice_seconds)}",
        *nvme,
        "#BSUB -o launch-%J.log",
        "# YOURS, if the site requires them (remove one #), or `hpo launch --account A --partition P`:",
        "##BSUB -P PROJECT",
        "##BSUB -q QUEUE",
    )

    def array(agents: int) -> JobArray:
        tasks = {
            "#BSUB -J ": (f'#BSUB -J "{run.name}[1-{agents}]"',),
            "#BSUB -o ": ("#BSUB -o launch-%J.%I.log",),
        }
        return JobArray(replace_directives(directives, tasks), "${LSB_JOBINDEX:-0}")

    return Scheduler(
        submit="bsub < launch.sh",
        folder="${LS_SUBCWD:-.}",
        job="$LSB_JOBID",
        notice=True,
        functions=FUNCTIONS.replace("GPUS", str(run.accelerators)),
        disk="/mnt/bb/$USER",
        directives=directives,
        array=array,
        hidden="LSB_JOBID",
    )
