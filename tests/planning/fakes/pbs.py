"""A fake of qsub, pbsnodes and mpiexec of PBS and MPICH; rules from the PBS Professional User's Guide."""

import os
import re
from pathlib import Path

from tests.planning.fakes.common import (
    SPOOL,
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

SELECT = r"select=(\d+):ncpus=(\d+):mpiprocs=(\d+)(?::ngpus=(\d+))?"
RESOURCE = rf"{SELECT}|place=(scatter|pack|free)(:excl|:shared)?|walltime=\d+:[0-5]\d:[0-5]\d"
BATCH = {
    "-N": r"[A-Za-z][\w.-]{0,229}",
    "-l": RESOURCE,
    "-j": "oe|eo|n",
    "-r": "y|n",
    "-A": r"\w+",
    "-q": r"\w+",
    "-W": r"depend=afterany:\d+",
    "-v": r"\w+(=[^,]*)?(,\w+(=[^,]*)?)*",  # a name alone: with its value in the environment of qsub
    "-J": r"\d+-\d+",
}
RUN = {"-n": r"\d+", "--ppn": r"\d+", "--hosts": r"[\w.,-]+", "--version": None}


def qsub(arguments):
    given, (script, *_) = parse(arguments, BATCH, equals=False)
    text = Path(script).read_text()
    options, asked = {}, {}
    for line in directives(text, "#PBS"):
        option, rest = parse(line.split(maxsplit=1), BATCH, equals=False)
        if rest:
            raise RefusedError(f"not a directive: {line}")
        if "-l" in option:
            asked[option["-l"].partition("=")[0]] = option["-l"]
        options |= option
    if set(asked) != {"select", "place", "walltime"}:
        raise RefusedError(f"asks for {sorted(asked)}")
    nodes, cores, ranks, _ = (int(part or 0) for part in re.match(SELECT, asked["select"]).groups())
    if ranks > cores:
        raise RefusedError(f"{ranks} ranks on {cores} cores")
    tasks = None
    if "-J" in options:
        first, last = map(int, options["-J"].split("-"))
        if last <= first or options.get("-r") != "y":
            raise RefusedError("an array needs rising numbers and is rerunnable")
        tasks = ("PBS_ARRAY_INDEX", list(range(first, last + 1)))
    hosts = hosts_of(nodes)
    SPOOL.mkdir(parents=True, exist_ok=True)
    listed = SPOOL / f"hosts-{nodes}"
    listed.write_text("".join(f"{host}\n" * ranks for host in hosts))
    pairs = (pair.partition("=") for pair in given.get("-v", "").split(",") if pair)
    handed = {name: value if equals else os.environ[name] for name, equals, value in pairs}
    number = submit(
        {**options, **asked, **given},
        text,
        {
            "HPO_SLOT": "1",
            **handed,
            "PBS_JOBID": "JOB_NUMBER",
            "PBS_NODEFILE": str(listed),
            "PBS_O_WORKDIR": str(Path.cwd()),
        },
        inside="PBS_JOBID" in os.environ,
        tasks=tasks,
    )
    say(number)


def mpiexec(arguments):
    options, command = parse(arguments, RUN, equals=False)
    if "--version" in options:
        say("HYDRA build details:")
        return 0
    hosts, per_node = options["--hosts"].split(","), int(options["--ppn"])
    if int(options["-n"]) != len(hosts) * per_node:
        raise RefusedError(f"{options['-n']} ranks on {len(hosts)} hosts with {per_node} each")
    if per_node > Path(os.environ["PBS_NODEFILE"]).read_text().split().count(hosts[0]):
        raise RefusedError(f"{per_node} ranks a host are more than the job has")
    return run_tasks(
        hosts,
        per_node,
        command,
        lambda rank, local: {"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(local)},
    )


def pbsnodes(arguments):
    if arguments != ["-l"]:
        raise RefusedError(f"unknown options {arguments}")
    for host in sorted(down()):
        say(f"{host}  down")


PROGRAMS = {"qsub": qsub, "mpiexec": mpiexec, "pbsnodes": pbsnodes}
FAULTS = [  # a part of a script, a wrong one in its place, and what is said of it
    ("walltime=00:20:00", "walltime=20m", "-l does not take"),
    ("-N small", "-M small", "unknown option -M"),
    ("ncpus=2:mpiprocs=2", "ncpus=1:mpiprocs=2", "2 ranks on 1 cores"),
]

if __name__ == "__main__":
    main(PROGRAMS)
