"""Slurm: ``sbatch launch.sh``, with ranks started by ``srun``. See the manual pages of sbatch, srun and sinfo."""

from __future__ import annotations

from hpo.planning.launchers.run import clock
from hpo.planning.launchers.script import JobArray, Scheduler, SlotFacts, replace_directives

FUNCTIONS = """\
healthy_hosts() {  # the hosts of this job that respond
  { sinfo --responding --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format=%n ||
    scontrol show hostnames "$SLURM_JOB_NODELIST"; } | sort -u
}
# If one rank fails, all end, so that the loop below can restart them. Each rank sees all GPUs of its node, which NCCL
# needs to copy between them. A rank uses the GPU with its local rank's number and binds itself to the cores of that
# GPU's NUMA node.
start() {  # PER_NODE COMMAND...
  local per_node=$1 list
  shift
  list=$(IFS=,; echo "${hosts[*]}")
  srun --nodes="${#hosts[@]}" --nodelist="$list" --ntasks=$((${#hosts[@]} * per_node)) --ntasks-per-node="$per_node" \\
    --cpu-bind=none GPU_BIND--no-kill --kill-on-bad-exit=1 "$@"
}
resubmit() {  # the new job waits for this one to end; sbatch passes on the environment
  sbatch --dependency=afterany:"$SLURM_JOB_ID" ${account:+--account="$account"} \\
    ${partition:+--partition="$partition"} launch.sh
}
"""


def scheduler(run: SlotFacts) -> Scheduler:
    """Return the directives and functions for Slurm."""
    gpus = (f"#SBATCH --gpus-per-node={run.accelerators}",) if run.accelerators else ()
    directives = (
        f"#SBATCH --job-name={run.name}",
        f"#SBATCH --nodes={run.nodes}",
        f"#SBATCH --ntasks-per-node={run.ranks}",
        *gpus,
        "#SBATCH --exclusive",
        f"#SBATCH --time={clock(run.slot_seconds)}",
        f"#SBATCH --signal=B:USR1@{run.notice_seconds}",
        "#SBATCH --no-kill",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=launch-%j.log",
        "# YOURS, if the site requires them (remove one #), or `hpo launch --account A --partition P`:",
        "##SBATCH --account=ACCOUNT",
        "##SBATCH --partition=PARTITION",
    )

    def array(agents: int) -> JobArray:
        output = (f"#SBATCH --array=0-{agents - 1}", "#SBATCH --output=launch-%A_%a.log")
        tasks = {"#SBATCH --output=": output, "#SBATCH --exclusive": (), "#SBATCH --no-kill": ()}
        return JobArray(replace_directives(directives, tasks), "${SLURM_ARRAY_TASK_ID:-0}")

    return Scheduler(
        submit="sbatch launch.sh",
        folder="${SLURM_SUBMIT_DIR:-.}",
        job="$SLURM_JOB_ID",
        notice=True,
        functions=FUNCTIONS.replace("GPU_BIND", "--gpu-bind=none " if run.accelerators else ""),
        directives=directives,
        array=array,
    )
