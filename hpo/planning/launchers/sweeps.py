"""A sweep on a machine with a scheduler: Ray inside one allocation, or agents in a job array.

Both write a folder with a readable script, ``launch.sh``. The script of an allocation starts Ray on all hosts of the
slot (`ray symmetric-run`) and `hpo run` on the first; it stops before the slot ends, requests another slot, and
continues there from the database. The script of an array runs `hpo agent` in every task. The directives, and the
functions that find hosts, start ranks and submit jobs, are the same as in the launch scripts of plans
(:mod:`hpo.planning.launchers.script`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpo.errors import LaunchError
from hpo.planning.launchers import scheduler_of_launcher
from hpo.planning.launchers.script import JobArray, Scheduler, section
from hpo.planning.schedulers import SCHEDULERS
from trainers.private_files import make_private_folder, write_private_text

SCRIPT, TOKEN, STORAGE = "launch.sh", "token", "storage"
GOES_ON = 75
"""The exit code of `hpo run --stop-after` if the study has not ended: EX_TEMPFAIL, which means run it again."""

LEAST_SECONDS = 300
"""The shortest slot: time to start Ray, to write the checkpoint of a trial, and to request the next slot."""


@dataclass(frozen=True)
class SweepSlot:
    """A request to a scheduler for one slot: the values in its directives.

    ``ranks`` is the number of tasks per node: one, which starts Ray or an agent. The sweep stops ``notice_seconds``
    before the end of the slot.
    """

    name: str
    nodes: int
    slot_seconds: int
    accelerators: int = 0
    ranks: int = 1
    notice_seconds: int = 120
    data_path: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.slot_seconds < LEAST_SECONDS:
            raise LaunchError(
                f"a slot of a sweep must last at least {LEAST_SECONDS} seconds, but got "
                f"{self.slot_seconds}"
            )


def write_allocation(
    folder: Path, scheduler: str, slot: SweepSlot, study: Path, *, storage: str, slots: int
) -> Path:
    """Write the folder of a sweep in one allocation and return its script; ``study`` is the study file.

    ``storage`` is a database that every host of the machine can reach; its URL, which may contain a password, is in a
    separate file that only its owner may read. ``slots`` is how many slots may be requested.
    """
    made = _scheduler(scheduler, slot)
    text = "\n".join(
        [
            _header(
                f"Study {slot.name}: a sweep on {slot.nodes} node{'s' if slot.nodes > 1 else ''}, with Ray, in "
                "consecutive slots.",
                made.submit,
            ),
            *_directives(made.directives),
            "",
            _facts(made, slots),
            section("The machine: its hosts, how tasks are started, how another slot is requested"),
            made.functions.strip(),
            "",
            _ALLOCATION.format(
                section=section("The sweep"),
                seconds=slot.slot_seconds - slot.notice_seconds,
                nodes=slot.nodes,
                storage=STORAGE,
                study=shlex.quote(str(study.absolute())),
                goes_on=GOES_ON,
            ),
        ]
    )
    return _write(folder, text, {STORAGE: storage})


def write_array(
    folder: Path,
    scheduler: str,
    slot: SweepSlot,
    study: Path,
    *,
    name: str,
    agents: int,
    server: str,
    token: str,
) -> tuple[str, ...]:
    """Write the folder of an array of ``agents`` that train the study ``name`` of a server.

    Returns the command that submits the script, empty if it is the usual one.

    The agents run in the folder of the study file ``study``, where custom workloads are looked up. The token is in a
    separate file that only its owner may read.
    """
    made = _scheduler(scheduler, slot)
    array = _array(made, scheduler, agents)
    command = shlex.join([*array.program, f"./{SCRIPT}"]) if array.program else ""
    text = "\n".join(
        [
            _header(
                f"Study {slot.name}: {agents} agents that train trials of the study at {server}.",
                command or made.submit,
            ),
            *_directives(array.directives),
            "",
            _ARRAY.format(
                no_notice=_NO_NOTICE,
                folder=made.folder,
                environment=_ENVIRONMENT,
                token=TOKEN,
                server=shlex.quote(server),
                study=shlex.quote(name),
                study_folder=shlex.quote(str(study.absolute().parent)),
                job=array.job or made.job,
                index=array.index,
                seconds=slot.slot_seconds - slot.notice_seconds,
            ),
        ]
    )
    _write(folder, text, {TOKEN: token})
    return array.program


def _write(folder: Path, text: str, secrets: Mapping[str, str]) -> Path:
    """Write the script, and each secret to a file of its own."""
    script = folder / SCRIPT
    try:
        make_private_folder(folder)
        for name, secret in secrets.items():
            write_private_text(folder / name, f"{secret}\n")
        write_private_text(script, text, executable=True)
    except OSError as error:
        raise LaunchError(f"cannot write the script to {folder}: {error.strerror}") from error
    return script


def _header(said: str, submit: str) -> str:
    return f"#!/usr/bin/env bash\n# {said}\n# Run it from this folder: {submit}\n#"


def _directives(lines: Sequence[str]) -> list[str]:
    return [line.replace("`hpo launch", "`hpo run") for line in lines]


def _scheduler(name: str, slot: SweepSlot) -> Scheduler:
    made = scheduler_of_launcher(name, slot) if SCHEDULERS[name].sweeps else ""
    if isinstance(made, str):
        able = ", ".join(each for each, its in SCHEDULERS.built_in.items() if its.sweeps)
        raise LaunchError(f"sweeps do not run under {name}; use one of {able}")
    return made


def _array(made: Scheduler, name: str, agents: int) -> JobArray:
    if made.array is None:
        raise LaunchError(
            f"{name} has no job arrays; leave out --array and start `hpo agent` yourself"
        )
    return made.array(agents)


_NO_NOTICE = "trap '' USR1  # a scheduler's notice before the end of the slot; --stop-after ends the work in time"
"""Without it, the notice would end the script before the work is given back and the next slot is requested."""

_ENVIRONMENT = """\
# module load python                 # YOURS: module names at your site
environment=${HPO_ENVIRONMENT:-}      # YOURS: the virtual environment that holds this package, if it is not active
if [[ -n $environment ]]; then
  # shellcheck disable=SC1091
  source "$environment/bin/activate"
fi"""


def _facts(made: Scheduler, slots: int) -> str:
    return f"""\
set -uo pipefail
{_NO_NOTICE}
cd "{made.folder}" || exit 1
account=${{HPO_ACCOUNT:-}}
partition=${{HPO_PARTITION:-}}
slot=${{HPO_SLOT:-1}}                  # which slot of the sweep this is, and how many it may take
max_slots=${{HPO_MAX_SLOTS:-{slots}}}
job={made.job}
{_ENVIRONMENT}
"""


_ALLOCATION = """\
{section}
port=${{HPO_PORT:-6379}}
mapfile -t hosts < <(healthy_hosts)
if ((${{#hosts[@]}} == 0)); then
  echo "no host of this slot responds" >&2
  exit 1
fi
echo "slot $slot of $max_slots: ${{#hosts[@]}} of {nodes} hosts"
# If the last slot was cut off, its run holds the study until its lease expires.
if ((slot > 1)); then sleep "${{HPO_LEASE_SECONDS:-35}}"; fi
# The tasks, one per host, form one Ray cluster, and the first host runs the command. It stops in time to request the
# next slot and writes its exit status to a file, as not every scheduler passes it on. It reads the URL of the database
# from a file, because others on the host can read a command line.
status=status.$slot
rm -f "$status"
seconds=$(({seconds} - SECONDS))
start 1 ray symmetric-run --address "${{hosts[0]}}:$port" --min-nodes "${{#hosts[@]}}" -- \\
  bash -c 'HPO_STORAGE=$(<{storage}) "$@"; echo $? > "$0"' "$status" \\
  hpo run {study} --folder "$PWD/.hpo" --ray-address "${{hosts[0]}}:$port" --stop-after "$seconds"
ended=$(cat "$status" 2>/dev/null || echo lost)
case $ended in
  0) echo "the sweep has ended" ;;
  {goes_on} | lost)  # it stopped before the end of the slot, or lost its hosts
    if ((slot >= max_slots)); then
      echo "the sweep has not ended after $max_slots slots: submit it again to continue" >&2
      exit {goes_on}
    fi
    export HPO_SLOT=$((slot + 1))
    resubmit
    ;;
  *) exit "$ended" ;;
esac
"""

_ARRAY = """\
set -uo pipefail
{no_notice}
cd "{folder}" || exit 1
{environment}
HPO_TOKEN=$(<{token})  # not on a command line, which others on the host can read
export HPO_TOKEN
folder=$PWD
cd {study_folder} || exit 1  # your own workload is looked up there
# The agent returns its trials to the queue before the slot ends; submit the array again until the study has ended.
exec hpo agent {study} --server {server} --name "{job}.{index}" --folder "$folder/.hpo" \\
  --stop-after {seconds}
"""
