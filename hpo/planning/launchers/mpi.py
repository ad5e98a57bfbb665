"""Ranks started by ``mpiexec`` (Open MPI, MPICH, HPE's PALS) or ``aprun``, for schedulers without their own launcher.

See the manual pages of mpiexec in Open MPI (--host) and in MPICH and PALS (--ppn, --hosts), and of aprun (-n, -N, -L).
"""

from __future__ import annotations

from hpo.planning.launchers.run import Run
from hpo.planning.launchers.script import Scheduler

START = """\
start() {  # PER_NODE COMMAND...: with the launcher that the machine has
  local per_node=$1 ranks list slots
  shift
  ranks=$((${#hosts[@]} * per_node))
  list=$(IFS=,; echo "${hosts[*]}")
  if command -v aprun >/dev/null; then
    aprun -n "$ranks" -N "$per_node" -L "$list" "$@"
  elif mpiexec --version 2>&1 | grep -q "Open MPI"; then
    slots=$(printf "%s:$per_node," "${hosts[@]}")
    mpiexec -n "$ranks" --host "${slots%,}" --bind-to none "$@"
  else
    mpiexec -n "$ranks" --ppn "$per_node" --hosts "$list" "$@"
  fi
}
"""

BY_HAND = """\
healthy_hosts() {  # the responding hosts among those in the file `hosts`, one per line
  local host
  while read -r host; do
    if ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$host" true; then echo "$host"; fi
  done < hosts
}
resubmit() { echo "run this script again to continue" && return 75; }  # no scheduler to request a slot from
"""


def scheduler(run: Run) -> Scheduler:  # noqa: ARG001  every launcher has the same signature
    """Return the functions for hosts without a scheduler, listed in a file ``hosts`` next to the script."""
    return Scheduler(
        submit="write the names of the nodes to a file `hosts`, one per line, then run bash "
        "launch.sh",
        folder='$(dirname "$0")',
        job="$$",
        notice=True,
        functions=BY_HAND + START,
        directives=(),
    )
