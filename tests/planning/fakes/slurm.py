"""A fake of sbatch, srun, sinfo and scontrol; rules from their manual pages."""

import os
from pathlib import Path

from tests.planning.fakes.common import (
    HOSTS,
    RefusedError,
    directives,
    down,
    hosts_of,
    main,
    parse,
    run_tasks,
    say,
    seconds,
    submit,
)

BATCH = {
    "--job-name": r"[\w.-]+",
    "--nodes": r"\d+",
    "--ntasks-per-node": r"\d+",
    "--gpus-per-node": r"\d+",
    "--exclusive": None,
    "--time": r"\d+:[0-5]\d:[0-5]\d",
    "--signal": r"B:USR1@\d{1,5}",
    "--no-kill": None,
    "--requeue": None,
    "--open-mode": "append|truncate",
    "--output": r"[\w%.-]+",
    "--account": r"\w+",
    "--partition": r"\w+",
    "--dependency": r"afterany:\d+",
    "--array": r"\d+-\d+",
}
RUN = {
    "--nodes": r"\d+",
    "--nodelist": r"[\w.,-]+",
    "--ntasks": r"\d+",
    "--ntasks-per-node": r"\d+",
    "--cpu-bind": "none",
    "--gpu-bind": "none",
    "--no-kill": None,
    "--kill-on-bad-exit": "1",
}


def sbatch(arguments):
    given, (script, *_) = parse(arguments, BATCH, equals=True)
    text = Path(script).read_text()
    options, rest = parse(directives(text, "#SBATCH"), BATCH, equals=True)
    if rest:
        raise RefusedError(f"not a directive: {rest[0]}")
    options |= given
    limit = seconds(options["--time"])
    if int(options["--signal"].rpartition("@")[2]) >= limit:
        raise RefusedError("the signal would come before the job starts")
    hosts = hosts_of(int(options["--nodes"]))
    tasks = None
    if "--array" in options:
        first, last = map(int, options["--array"].split("-"))
        if last < first or "%a" not in options["--output"]:
            raise RefusedError("an array needs rising numbers, and tasks a log each (%a)")
        tasks = ("SLURM_ARRAY_TASK_ID", list(range(first, last + 1)))
    number = submit(
        options,
        text,
        {
            "SLURM_JOB_ID": "JOB_NUMBER",
            "SLURM_JOB_NODELIST": ",".join(hosts),
            "SLURM_SUBMIT_DIR": str(Path.cwd()),
            "SLURM_NTASKS_PER_NODE": options["--ntasks-per-node"],
        },
        inside="SLURM_JOB_ID" in os.environ,
        tasks=tasks,
    )
    say(f"Submitted batch job {number}")


def srun(arguments):
    options, command = parse(arguments, RUN, equals=True)
    nodes, per_node = int(options["--nodes"]), int(options["--ntasks-per-node"])
    hosts = options["--nodelist"].split(",")
    if len(hosts) != nodes or not set(hosts) <= set(os.environ["SLURM_JOB_NODELIST"].split(",")):
        raise RefusedError(f"--nodes={nodes} but the list has {hosts}")
    if int(options["--ntasks"]) != nodes * per_node:
        raise RefusedError(f"{options['--ntasks']} tasks on {nodes} nodes with {per_node} each")
    if per_node > int(os.environ["SLURM_NTASKS_PER_NODE"]):
        raise RefusedError(
            f"{per_node} tasks a node, but the job has {os.environ['SLURM_NTASKS_PER_NODE']}"
        )
    if down() & set(hosts):
        raise RefusedError("Required node not available (down, drained or reserved)")
    return run_tasks(
        hosts,
        per_node,
        command,
        lambda rank, local: {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)},
    )


def sinfo(arguments):
    options, _ = parse(
        arguments,
        {
            "--responding": None,
            "--noheader": None,
            "--Node": None,
            "--nodes": r"[\w.,-]+",
            "--format": "%n",
        },
        equals=True,
    )
    say("\n".join(host for host in options["--nodes"].split(",") if host not in down()))


def scontrol(arguments):
    if arguments[:2] != ["show", "hostnames"]:
        raise RefusedError(f"no such command: {arguments}")
    say("\n".join(HOSTS))


PROGRAMS = {"sbatch": sbatch, "srun": srun, "sinfo": sinfo, "scontrol": scontrol}
FAULTS = [  # a part of a script, a wrong one in its place, and what is said of it
    ("--time=00:20:00", "--time=20 min", "--time does not take"),
    ("--exclusive", "--exclusiv", "unknown"),
    ("--nodes=2", "--nodes=three", "--nodes does not take"),
    ("B:USR1@600", "B:USR1@1200", "signal would"),
]

if __name__ == "__main__":
    main(PROGRAMS)
