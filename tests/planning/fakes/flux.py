"""A fake of flux batch, run and hostlist; rules from flux-batch(1), flux-run(1), flux-hostlist(1) and RFC 36."""

import os
import shlex
from pathlib import Path

from tests.planning.fakes.common import (
    RefusedError,
    directives,
    down,
    hosts_of,
    main,
    parse,
    run_tasks,
    say,
    submit,
)

BATCH = {
    "--job-name": r"[\w.-]+",
    "--nodes": r"\d+",
    "--exclusive": None,
    "--time-limit": r"\d+(\.\d+)?[smhd]",
    "--output": r"[\w{}.-]+",
    "--bank": r"\w+",
    "--queue": r"\w+",
    "--dependency": r"afterany:\d+",
}
SUBMIT = {
    "--cc": r"\d+-\d+",
    "--job-name": r"[\w.-]+",
    "--nodes": r"\d+",
    "--ntasks": r"\d+",
    "--gpus-per-task": r"\d+",
    "--time-limit": r"\d+(\.\d+)?[smhd]",
    "--output": r"[\w{}.-]+",
    "--bank": r"\w+",
    "--queue": r"\w+",
}
RUN = {
    "--nodes": r"\d+",
    "--tasks-per-node": r"\d+",
    "--exclusive": None,
    "--requires": r"hosts:[\w.,-]+",
    "--setopt": r"(cpu|gpu)-affinity=off",
}


def flux(arguments):
    parent = arguments[0] == "--parent"
    command, *rest = arguments[1:] if parent else arguments
    if command == "batch":
        inside = "FLUX_ENCLOSING_ID" in os.environ
        if inside and not parent:
            raise RefusedError("a job in this job would wait for its own end")
        return batch(rest, inside)
    return {"run": run, "hostlist": hostlist, "submit": submit_copies}[command](rest)


def submit_copies(arguments):
    """One job for each number of --cc; the command is started as it is, and its directives are not read."""
    options, (program, *_) = parse(arguments, SUBMIT, equals=True)
    if not os.access(program, os.X_OK):
        raise RefusedError(f"{program} cannot be run")
    if int(options["--ntasks"]) < int(options["--nodes"]):
        raise RefusedError("fewer tasks than nodes")
    first, last = map(int, options["--cc"].split("-"))
    number = submit(
        options,
        Path(program).read_text(),
        {"FLUX_JOB_ID": "JOB_NUMBER"},
        inside=False,
        tasks=("FLUX_JOB_CC", list(range(first, last + 1))),
    )
    say(number)
    return 0


def batch(arguments, inside):
    given, (script, *_) = parse(arguments, BATCH, equals=True)
    text = Path(script).read_text()
    words = [
        word for line in directives(text, "# flux:") for word in shlex.split(line, comments=True)
    ]
    options, rest = parse(words, BATCH, equals=True)
    if rest:
        raise RefusedError(f"not a directive: {rest[0]}")
    options |= given
    hosts = hosts_of(int(options["--nodes"]))
    number = submit(
        options,
        text,
        {"FLUX_ENCLOSING_ID": "JOB_NUMBER", "FAKE_HOSTS": " ".join(hosts)},
        inside=inside,
    )
    say(number)
    return 0


def run(arguments):
    options, command = parse(arguments, RUN, equals=True)
    hosts, per_node = (
        options["--requires"].removeprefix("hosts:").split(","),
        int(options["--tasks-per-node"]),
    )
    if len(hosts) != int(options["--nodes"]):
        raise RefusedError(f"--nodes={options['--nodes']} but {len(hosts)} hosts")
    if not set(hosts) <= set(os.environ["FAKE_HOSTS"].split()) - down():
        raise RefusedError(f"unsatisfiable request: {hosts}")
    return run_tasks(
        hosts,
        per_node,
        command,
        lambda rank, local: {"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(local)},
    )


def hostlist(arguments):
    options, sources = parse(arguments, {"--expand": None, "--delimiter": r"\n| "}, equals=True)
    if sources != ["avail"]:
        raise RefusedError(f"unknown source {sources}")
    say(
        options.get("--delimiter", " ").join(
            each for each in os.environ["FAKE_HOSTS"].split() if each not in down()
        )
    )


PROGRAMS = {"flux": flux}
FAULTS = [  # a part of a script, a wrong one in its place, and what is said of it
    ("--time-limit=20m", "--time-limit=00:20:00", "--time-limit does not take"),
    ("--nodes=2", "--node=2", "unknown option --node"),
]

if __name__ == "__main__":
    main(PROGRAMS)
