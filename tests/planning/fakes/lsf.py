"""A fake of bsub and jsrun as on Summit; rules from IBM's reference and the Summit User Guide."""

import os
import re
import shlex
import sys
from pathlib import Path

from tests.planning.fakes.common import (
    SPOOL,
    RefusedError,
    directives,
    hosts_of,
    main,
    parse,
    run_tasks,
    say,
    seconds,
    submit,
)

BATCH = {
    "-J": r"[A-Za-z][\w.-]*(\[\d+-\d+\])?",
    "-nnodes": r"\d+",
    "-W": r"\d{1,3}:[0-5]\d",
    "-wa": "USR1|URG|HUP",
    "-wt": r"(\d+:)?\d+",
    "-alloc_flags": r"(NVME|gpumps|smt[124])( (NVME|gpumps|smt[124]))*",
    "-o": r"[\w%.-]+",
    "-P": r"\w+",
    "-q": r"\w+",
    "-w": r"ended\(\d+\)",
}
RUN = {
    "--nrs": r"\d+",
    "--rs_per_host": r"\d+",
    "--tasks_per_rs": r"\d+",
    "--cpu_per_rs": r"\d+|ALL_CPUS",
    "--gpu_per_rs": r"\d+|ALL_GPUS",
    "--bind": r"none|rs|packed:\d+",
    "--exit_on_error": "[01]",
}
CORES = 42


def bsub(arguments):
    given, rest = parse(arguments, BATCH, equals=False)
    if rest:
        raise RefusedError(f"the script comes on standard input, but got {rest}")
    text = sys.stdin.read()
    options, rest = parse(shlex.split("\n".join(directives(text, "#BSUB"))), BATCH, equals=False)
    if rest:
        raise RefusedError(f"not a directive: {rest[0]}")
    options |= given
    if ("-wa" in options) != ("-wt" in options):
        raise RefusedError("-wa and -wt go together")
    warning = options["-wt"]
    if (seconds(warning) if ":" in warning else 60 * int(warning)) >= seconds(options["-W"]):
        raise RefusedError("the warning would come before the job starts")
    hosts = hosts_of(int(options["-nnodes"]))
    SPOOL.mkdir(parents=True, exist_ok=True)
    listed = SPOOL / f"hosts-{len(hosts)}"
    listed.write_text("\n".join(["batch1", *(host for host in hosts for _ in range(CORES))]) + "\n")
    tasks, array = None, re.search(r"\[(\d+)-(\d+)\]$", options["-J"])
    if array:
        first, last = int(array[1]), int(array[2])
        if not 1 <= first <= last or "%I" not in options["-o"]:
            raise RefusedError("an array counts from 1 up, and its tasks need a log each (%I)")
        tasks = ("LSB_JOBINDEX", list(range(first, last + 1)))
    number = submit(
        options,
        text,
        {"LSB_JOBID": "JOB_NUMBER", "LSB_DJOB_HOSTFILE": str(listed), "LS_SUBCWD": str(Path.cwd())},
        inside="LSB_JOBID" in os.environ,
        tasks=tasks,
    )
    say(f"Job <{number}> is submitted to queue <batch>.")


def jsrun(arguments):
    options, command = parse(arguments, RUN, equals=True)
    hosts = sorted(
        set(Path(os.environ["LSB_DJOB_HOSTFILE"]).read_text().split()) - {"batch1"}, reverse=True
    )
    sets, per_host = int(options["--nrs"]), int(options["--rs_per_host"])
    if sets > per_host * len(hosts) or sets % per_host:
        raise RefusedError(
            f"{sets} resource sets, {per_host} a host, do not fit on {len(hosts)} hosts"
        )
    per_node = per_host * int(options["--tasks_per_rs"])
    if per_node > CORES:
        raise RefusedError(f"{per_node} tasks on {CORES} cores")
    return run_tasks(
        hosts[: sets // per_host],
        per_node,
        command,
        lambda rank, local: {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        },
    )


PROGRAMS = {"bsub": bsub, "jsrun": jsrun}
FAULTS = [  # a part of a script, a wrong one in its place, and what is said of it
    ("-W 00:20", "-W 00:20:00", "-W does not take"),
    ("-nnodes 2", "-nodes 2", "unknown option -nodes"),
    ("-wt 10", "-wt 30", "warning would come"),
    ("-wa USR1", "-J again", "go together"),
]

if __name__ == "__main__":
    main(PROGRAMS)
