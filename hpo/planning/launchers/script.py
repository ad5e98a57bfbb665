"""The part of a launch script that all schedulers share; a scheduler adds its directives and bash functions.

A script first selects the responding hosts of its slot, as many as the batch can be split over, and copies the training
data to their disks. It then trains and, after losing a rank or node, resumes from the last checkpoint on the hosts that
still respond. It requests another slot if its own slot ends first or its hosts fail.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpo.planning.launchers.environment import all_reduce_argument
from hpo.planning.launchers.job_setup import JobSetup
from hpo.planning.launchers.run import FILES, Run, format_duration, format_durations
from hpo.study.program import PROGRAM
from hpo.study.restart_limits import RUN_RESTARTS

WIDTH = 110
YOURS = """\
account=${HPO_ACCOUNT:-}             # YOURS, if the site requires them; further slots are requested with them
partition=${HPO_PARTITION:-}
"""
MOST_LISTED = 24

HANDED = """\
handed() {  # the names of the variables that a further slot is requested with; secrets stay out
  local name names=
  for name in "${!HPO_@}"; do
    if [[ $name != HPO_@(LAUNCHER|STORAGE|TOKEN) ]]; then names+=${names:+,}$name; fi
  done
  echo "$names"
}
"""
"""A bash function for schedulers that pass on only the variables that they are told."""


class SlotFacts(Protocol):
    """The inputs to a scheduler's directives, provided by a plan's run or a sweep's slot."""

    @property
    def name(self) -> str:
        """The job's name, valid for every scheduler."""

    @property
    def nodes(self) -> int:
        """The number of nodes in the slot."""

    @property
    def ranks(self) -> int:
        """The number of tasks on each node."""

    @property
    def accelerators(self) -> int:
        """The number of accelerators on each node."""

    @property
    def slot_seconds(self) -> int:
        """The time limit in seconds."""

    @property
    def notice_seconds(self) -> int:
        """Seconds before the limit at which the script gets its signal."""

    @property
    def data_path(self) -> str | None:
        """The training data to copy to the nodes' disks; None if there are none."""


@dataclass(frozen=True)
class Scheduler:
    """What a scheduler adds to the script.

    ``submit`` is the command that submits the script. ``folder`` and ``job`` are bash expressions for the folder of its
    files and the job's number. ``directives`` are whole lines. ``functions`` is bash code that defines
    ``healthy_hosts`` (prints one host per line), ``start PER_NODE COMMAND...`` (on the array ``hosts``) and
    ``resubmit``. ``notice`` means that the scheduler itself sends SIGUSR1 before the slot ends. ``array`` returns the
    job array for a given number of tasks, if the scheduler can run sweeps. ``workers`` is bash code that defines
    ``workers NUMBER MODULE ARGUMENTS...`` if ranks are not started by torchrun or Horovod, with ``BACKEND`` in place of
    the backend; ``hidden`` is a variable that horovodrun must not see.
    """

    submit: str
    folder: str
    job: str
    directives: tuple[str, ...]
    functions: str
    notice: bool
    disk: str = "${TMPDIR:-/tmp}"
    array: Callable[[int], JobArray] | None = None
    workers: str = ""
    hidden: str = ""


@dataclass(frozen=True)
class JobArray:
    """A job array, whose tasks may share a node: its directives, and a bash expression for the index of a task.

    ``job`` is a bash expression for the job's number, if it differs from that of a single job. ``program`` holds the
    words of the command that submits the script, if it is not the usual one.
    """

    directives: tuple[str, ...]
    index: str
    job: str = ""
    program: tuple[str, ...] = ()


def replace_directives(
    directives: Sequence[str], instead: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the directives, with each line that starts with a key of ``instead`` replaced by its value."""
    found: list[str] = []
    for line in directives:
        starts = [start for start in instead if line.startswith(start)]
        found += instead[starts[0]] if starts else (line,)
    return tuple(found)


def launch_script(run: Run, scheduler: Scheduler) -> str:
    """Return the whole ``launch.sh`` of a plan."""
    parts = [
        script_header(run, scheduler.submit),
        *scheduler.directives,
        "",
        _facts(run, scheduler),
        _environment(run),
        section(
            "The machine: its hosts, how ranks are started on them, how another slot is requested"
        ),
        scheduler.functions.strip(),
        "",
        _workers(run, scheduler),
        _staging(run, scheduler),
        _training(run),
        _notice(run, scheduler),
        _loop(),
    ]
    return "\n".join(parts)


def script_header(run: Run, submit: str) -> str:
    """Return the shebang and the comment lines that describe the run to readers of the script."""
    plan = run.plan
    on = (
        f"{run.nodes} node{'s' if run.nodes > 1 else ''} of {run.machine_title}, {run.ranks} rank"
        f"{'s' if run.ranks > 1 else ''} on each"
    )
    said = [
        f"Study {plan.study}: global batch size {plan.global_batch_size} on {on}: {plan.workers} ranks with "
        f"{plan.local_batch_size} samples each per update.",
        _expected(run),
        *([f"Trust {plan.trust}: {plan.reason}"] if plan.trust else []),
        *([f"The speed is limited by the {plan.limited_by}."] if plan.limited_by else []),
        f"It writes {FILES.report}, one line of JSON per evaluation and the outcome at the end; "
        f"`hpo record {plan.id if plan.id is not None else 'PLAN'} {FILES.report}` records it.",
        f"Run it from this folder: {submit}",
    ]
    lines = [
        line for text in said for line in textwrap.wrap(_plain(text), WIDTH, break_long_words=False)
    ]
    return "\n".join(["#!/usr/bin/env bash", *(f"# {line}" for line in lines), "#"])


def section(title: str) -> str:
    """Return a comment line that starts a section."""
    return f"# ---- {title} ".ljust(WIDTH, "-")


def quoted(text: str) -> str:
    """Quote text as a single bash word."""
    return shlex.quote(text)


def _expected(run: Run) -> str:
    plan, target = run.plan, run.plan.job.target
    if plan.best is not None:
        ends = plan.best.interval
        said = (
            f"{plan.best.metric} of {ends.median:.4g} ({ends.low:.4g} to {ends.high:.4g}, a 90 % interval) is expected "
            f"after {plan.best.epochs:g} epochs"
        )
        return said + (f", {format_durations(plan.seconds)} of training." if plan.seconds else ".")
    if not target.ends:
        return f"{str(target).capitalize()} after {plan.job.epochs:g} epochs is required. There is no forecast for it."
    if plan.epochs is None:
        return f"Target {target}. There is no forecast for it; the run may take {plan.job.epochs:g} epochs."
    said = (
        f"Target {target}, expected after {plan.epochs.median:.3g} epochs ({plan.epochs.low:.3g} to "
        f"{plan.epochs.high:.3g})"
    )
    said += f" and {format_durations(plan.seconds)} of training" if plan.seconds else ""
    said += "; both are 90 % intervals." if plan.seconds else ", a 90 % interval."
    if plan.chance_in_slot is not None and plan.slot_seconds is not None:
        said += f" Chance of success within a slot of {format_duration(plan.slot_seconds)}: {plan.chance_in_slot:.0%}."
    return said


def _facts(run: Run, scheduler: Scheduler) -> str:
    listed = " ".join(map(str, run.possible_nodes[:MOST_LISTED]))
    job = f"job={scheduler.job}\n" if run.backend in ("torch", PROGRAM) else ""
    yours = YOURS if scheduler.directives else ""
    return f"""\
set -uo pipefail
umask "${{HPO_UMASK:-077}}"  # only the user may read what the run writes
cd "{scheduler.folder}" || exit 1
exec 9>> launch.lock  # held by every process of the run, so that no second run writes to this folder
if command -v flock > /dev/null; then
  flock --wait 15 9
  if (($? == 1)); then
    echo "another run is writing to $PWD; wait for it or stop it" >&2
    exit 1
  fi
fi
export HPO_LAUNCHER="$HOSTNAME:$$"  # ranks on this host end when this script does

{section("The run")}
ranks_per_node={run.ranks}
possible_nodes="{listed}"  # numbers of nodes over which the batch can be split, largest first
max_restarts=${{HPO_MAX_RESTARTS:-{RUN_RESTARTS}}}  # in one slot, after a lost rank or node
slot=${{HPO_SLOT:-1}}                  # which slot of the run this is, and how many it may take
max_slots=${{HPO_MAX_SLOTS:-{run.slots}}}
checkpoint_minutes=${{HPO_CHECKPOINT_MINUTES:-{run.plan.save_after_minutes:.4g}}}  # then saves at the next evaluation
{yours}{job}"""


def _environment(run: Run) -> str:
    exports = "\n".join(
        f"export {variable.name}={variable.value}  # {variable.why}" for variable in run.environment
    )
    socket = (
        ""
        if not run.accelerators
        else (
            "\n# export NCCL_SOCKET_IFNAME=ib0  # if NCCL picks the wrong network: the interface of the fast one"
        )
    )
    return f"""\
{section("The environment of every rank")}
{JobSetup.of_plan(run.plan).lines(gpus=run.accelerators > 0)}
environment=${{HPO_ENVIRONMENT:-}}      # YOURS: the virtual environment that holds this package, if it is not active
if [[ -n $environment ]]; then
  # shellcheck disable=SC1091
  source "$environment/bin/activate"
fi
{exports}{socket}
"""


def _workers(run: Run, scheduler: Scheduler) -> str:
    if run.backend == PROGRAM:
        return (
            "attempt=0\nport=${HPO_PORT:-29500}  # port on the first node, where all workers meet\n"
        )
    if scheduler.workers:
        return scheduler.workers.replace("BACKEND", run.backend)
    if run.backend == "torch":
        return """\
port=${HPO_PORT:-29500}
attempt=0
if [[ ! -s secret ]]; then head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > secret; fi
# workers PER_NODE MODULE ARGUMENTS...: one torchrun per host. They start the ranks, rendezvous at the first host using
# the secret of this run, and restart all ranks if one of them is lost
workers() {
  local per_node=$1
  shift
  start 1 "${inside[@]}" python -m trainers.agents secret --nnodes="${#hosts[@]}" --nproc-per-node="$per_node" \\
    --max-restarts="$max_restarts" --rdzv-id="$job.$attempt" --rdzv-endpoint="${hosts[0]}:$port" \\
    -m "$@" --backend torch
}
"""
    hidden = f"env -u {scheduler.hidden} " if scheduler.hidden else ""
    why = (
        f"\n# With {scheduler.hidden} set, horovodrun 0.28.1 over Gloo fails, so it is unset there."
        if hidden
        else ""
    )
    return """\
# workers PER_NODE MODULE ARGUMENTS...: Horovod ranks on each host. If Horovod was built with MPI, they start like MPI
# ranks; otherwise horovodrun starts them, which needs ssh to the hosts. Horovod's elastic mode is not used: it needs
# ranks that survive the loss of another, while the loop below restarts all ranks from the last checkpoint.WHY
network=${HPO_NETWORK:-}  # YOURS, if horovodrun does not find the fast network: its interface, e.g. ib0
attempt=0
workers() {
  local per_node=$1 slots
  shift
  if horovodrun --check-build 2>/dev/null | grep -q '\\[X\\] MPI'; then
    start "$per_node" "${inside[@]}" python -m "$@" --backend horovod
  else
    slots=$(printf "%s:$per_node," "${hosts[@]}")
    HIDDENhorovodrun -np $((${#hosts[@]} * per_node)) -H "${slots%,}" --gloo \\
      ${network:+--network-interfaces "$network"} "${inside[@]}" python -m "$@" --backend horovod
  fi
}
""".replace("WHY", why).replace("HIDDEN", hidden)


def _staging(run: Run, scheduler: Scheduler) -> str:
    if run.data_path is None:
        return "stage() { :; }  # no data to copy to the nodes' own disks\n"
    return f"""\
{section(f"Staging: the training data are copied to each node's own disk ({run.node_storage})")}
shared_data={quoted(run.data_path)}
local_data={scheduler.disk}/{run.name}  # YOURS: a folder on the disk of every node
stage() {{  # every file is read once from the shared folder; complete copies from an earlier slot are kept
  workers 1 trainers.staging "$shared_data" "$local_data"
}}
"""


def _training(run: Run) -> str:
    if run.backend == PROGRAM:
        return _program(run)
    data = ' \\\n    --data-path "$local_data"' if run.data_path is not None else ""
    way = all_reduce_argument(run.plan, run.backend)
    travels = f" --all-reduce {way}" if way != "default" else ""
    return f"""\
{section("The training")}
train() {{
  workers "$ranks_per_node" trainers {FILES.job} --report {FILES.report} --checkpoint {FILES.checkpoint} \\
    --checkpoint-minutes "$checkpoint_minutes" --stop-file {FILES.stop}{travels}{data}
}}
"""


def _program(run: Run) -> str:
    each = "{node_rank}" in " ".join(run.plan.job.data["command"])
    once = "" if each or run.nodes == 1 else "; it runs once and starts workers on all nodes"
    start = "start 1 " if each or run.nodes == 1 else ""
    return f"""\
{section(f"The program: its command is in {FILES.job}{once}")}
train() {{
  {start}"${{inside[@]}}" python -m trainers {FILES.job} --report {FILES.report} --stop-file {FILES.stop} \\
    --hosts "$(IFS=,; echo "${{hosts[*]}}")" --workers-per-node "$ranks_per_node" --port "$port" \\
    --attempt "$job.$attempt"
}}
"""


def _notice(run: Run, scheduler: Scheduler) -> str:
    timer = (
        ""
        if scheduler.notice
        else f"""
slot_seconds=${{HPO_SLOT_SECONDS:-{run.slot_seconds}}}
# the scheduler sends no signal before the slot ends
(exec 9>&-; sleep $((slot_seconds - {run.notice_seconds})) && kill -USR1 $$) >/dev/null 2>&1 &
timer=$!
trap 'pkill -P "$timer"; kill "$timer" 2>/dev/null' EXIT
"""
    )
    return f"""\
{section(f"{format_duration(run.notice_seconds)} before the slot ends, the training is asked to save and exit")}
ask_to_stop() {{
  echo "$(date): the slot ends soon; the training saves at its next evaluation and exits"
  touch {FILES.stop}
}}
trap ask_to_stop USR1
rm -f {FILES.stop}
{timer}"""


def _loop() -> str:
    return f"""\
count() {{  # number of report lines of a kind: step, started or outcome
  local found
  found=$(grep -c "^{{\\"$1\\"" {FILES.report} 2>/dev/null)
  echo "${{found:-0}}"
}}

choose_hosts() {{  # as many of the responding hosts as the batch can be split over
  local wanted
  mapfile -t hosts < <(healthy_hosts | grep .)
  for wanted in $possible_nodes; do
    if ((wanted <= ${{#hosts[@]}})); then
      hosts=("${{hosts[@]:0:wanted}}")
      return 0
    fi
  done
  echo "${{#hosts[@]}} hosts respond, and the batch cannot be split over so few" >&2
  return 1
}}

wait_for() {{  # a background process: bash handles a signal only between two foreground commands
  while kill -0 "$1" 2>/dev/null; do wait "$1"; done
}}

if (($(count outcome) > 0)); then
  echo "this run has ended: see {FILES.report}; remove it and {FILES.checkpoint} to run again"
  exit 0
fi
points_before=$(count step)
staged=no
while choose_hosts; do
  attempt=$((attempt + 1))
  if [[ $staged == no ]]; then
    stage || {{ echo "staging failed" >&2; exit 1; }}
    staged=yes
  fi
  starts_before=$(count started)
  (trap '' USR1; train) &
  wait_for $!
  if (($(count outcome) > 0)); then exit 0; fi
  if [[ -e {FILES.stop} ]]; then break; fi
  if (($(count started) == starts_before)); then
    echo "the training did not start: see the output of the ranks above" >&2
    exit 1
  fi
  if ((attempt > max_restarts)); then break; fi
  echo "$(date): a rank or a node was lost; restart $attempt of $max_restarts from {FILES.checkpoint}"
done

if (($(count step) <= points_before)); then
  echo "the training made no progress in this slot and would make none in another" >&2
  exit 1
fi
if ((slot >= max_slots)); then
  echo "slot $slot of $max_slots is over; raise HPO_MAX_SLOTS to continue from {FILES.checkpoint}" >&2
  exit 1
fi
export HPO_SLOT=$((slot + 1))
echo "$(date): requesting slot $HPO_SLOT of $max_slots"
resubmit
"""


def _plain(text: str) -> str:
    """Return text as one line, so that a study's name or reason cannot end the comment."""
    return " ".join(text.split())


def whole_minutes(seconds: float) -> int:
    """Convert seconds to whole minutes, rounded up."""
    return math.ceil(seconds / 60)
