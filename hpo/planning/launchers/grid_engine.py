"""Univa or Altair Grid Engine, as on ABCI and TSUBAME 3: ``qsub launch.sh``, with ranks started by ``mpiexec``.

See qsub(1) and queue_conf(5) of Grid Engine: a job gets SIGUSR1 at its soft limit ``s_rt``.
"""

from __future__ import annotations

from hpo.planning.launchers.mpi import START
from hpo.planning.launchers.run import Run, clock
from hpo.planning.launchers.script import HANDED, Scheduler

WHOLE_NODE = {"abci": "rt_F", "tsubame3": "f_node"}
"""Each site's name for the resource of a whole node, by machine."""

FUNCTIONS = """\
healthy_hosts() {  # the hosts of this job that can run a command
  local host
  awk '{print $1}' "${SGE_JOB_HOSTLIST:-$PE_HOSTFILE}" | sort -u | while read -r host; do
    if ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$host" true; then echo "$host"; fi
  done
}
resubmit() {  # the new job waits for this one to end
  qsub -hold_jid "$JOB_ID" -v "$(handed)" ${account:+-g "$account"} ${partition:+-q "$partition"} launch.sh
}
"""


def scheduler(run: Run) -> Scheduler:
    """Return the directives and functions for Grid Engine."""
    known = run.plan.machine in WHOLE_NODE
    note = (
        ()
        if known
        else ("# YOURS: what your site calls a whole node; rt_F at ABCI, f_node at TSUBAME 3",)
    )
    return Scheduler(
        submit="qsub launch.sh",
        folder="${SGE_O_WORKDIR:-.}",
        job="$JOB_ID",
        notice=True,
        functions=HANDED + FUNCTIONS + START,
        directives=(
            f"#$ -N {run.name}",
            *note,
            f"#$ -l {WHOLE_NODE.get(run.plan.machine, 'rt_F')}={run.nodes}",
            f"#$ -l h_rt={clock(run.slot_seconds)}",
            f"#$ -l s_rt={clock(run.slot_seconds - run.notice_seconds)}",
            "#$ -cwd",
            "#$ -j y",
            "#$ -r y",
            "# YOURS, if the site requires it: qsub -g GROUP launch.sh, or `hpo launch --account GROUP`",
        ),
    )
