"""What the fake schedulers share: strict options, a queue of jobs in a folder, and tasks on hosts of this machine.

``FAKE_SPOOL`` is the folder: ``jobs.jsonl`` holds every job with its options and its end, ``down`` names hosts that
are lost. The first job gets SIGUSR1 when its report holds ``FAKE_NOTICE_POINTS`` points. A job that is submitted
from inside a job runs after it; submitted from outside, it and all that follow it run before the command returns.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpo.planning.schedulers import SCHEDULERS

HOSTS = ("localhost", "127.0.0.1")  # two names of this machine: two nodes that reach each other
SPOOL = Path(os.environ.get("FAKE_SPOOL", "/nonexistent"))


class RefusedError(Exception):
    """A call that a real scheduler would refuse."""


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(programs):
    name, arguments = sys.argv[1], sys.argv[2:]
    try:
        sys.exit(programs[name](arguments))
    except RefusedError as error:
        sys.stderr.write(f"{name}: error: {error}\n")
        sys.exit(1)


def parse(words, rules, *, equals):
    """Return the options by name, and the rest from the first word that is not an option; refuse invalid options.

    A rule is a pattern of the value, or None for a flag. With ``equals`` values follow `=`, else the next word.
    """
    found = {}
    words = list(words)
    while words and words[0].startswith("-"):
        name, separator, value = words.pop(0).partition("=") if equals else (words.pop(0), "", "")
        if name not in rules:
            raise RefusedError(f"unknown option {name}")
        rule = rules[name]
        if rule is None:
            if separator:
                raise RefusedError(f"{name} takes no value")
        else:
            if not separator:
                if not words:
                    raise RefusedError(f"{name} needs a value")
                value = words.pop(0)
            if not re.fullmatch(rule, value):
                raise RefusedError(f"{name} does not take {value!r}")
        found[name] = value or True
    return found, words


def directives(text, prefix):
    """Return the directives before the first command; refuse any after it, which would be ignored."""
    found, commands = [], False
    for line in text.splitlines():
        if line.startswith(prefix):
            if commands:
                raise RefusedError(f"a directive behind the first command: {line}")
            found.append(line[len(prefix) :].strip())
        elif line.strip() and not line.startswith("#"):
            commands = True
    if not found:
        raise RefusedError(f"no {prefix} directives")
    return found


def seconds(text):
    """Of HH:MM:SS or HH:MM."""
    parts = [int(part) for part in text.split(":")]
    return parts[0] * 3600 + parts[1] * 60 + (parts[2] if len(parts) == 3 else 0)


def hosts_of(count):
    """The names of a job's nodes."""
    if count > len(HOSTS):
        raise RefusedError(f"this machine plays {len(HOSTS)} nodes, not {count}")
    return HOSTS[:count]


def down():
    file = SPOOL / "down"
    return set(file.read_text().split()) if file.exists() else set()


def submit(options, text, environment, *, inside, tasks=None):
    """Queue a job; outside a job also run it and all that it queues. Returns its number.

    ``tasks`` of an array: the variable that holds a task's number, and the numbers; they run at the same time.
    """
    SPOOL.mkdir(parents=True, exist_ok=True)
    number = len(list(SPOOL.glob("job-*.json"))) + 1
    job = {
        "number": number,
        "options": options,
        "text": text,
        "tasks": tasks,
        "folder": str(Path.cwd()),
        "environment": {
            **(_handed_on() if SCHEDULERS[Path(sys.argv[0]).stem].hands_on else {}),
            **{
                name: value.replace("JOB_NUMBER", str(number))
                for name, value in environment.items()
            },
        },
    }
    (SPOOL / f"job-{number}.json").write_text(json.dumps(job))
    if not inside:
        while number <= len(list(SPOOL.glob("job-*.json"))):
            _run(json.loads((SPOOL / f"job-{number}.json").read_text()))
            number += 1
    return job["number"]


def _handed_on():
    """Return the part of the submitting environment that some schedulers pass on to a job."""
    return {name: value for name, value in os.environ.items() if name.startswith("HPO_")}


def _run(job):
    script = SPOOL / f"script-{job['number']}.sh"
    script.write_text(job["text"])
    if job["tasks"]:
        _run_array(job, script)
        return
    log = Path(job["folder"]) / f"launch-{job['number']}.log"
    with log.open("a") as output:
        process = subprocess.Popen(
            ["bash", str(script)],
            cwd=job["folder"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **job["environment"]},
        )
    points = os.environ.get("FAKE_NOTICE_POINTS")
    if points and job["number"] == 1:
        threading.Thread(
            target=_give_notice, args=(process, Path(job["folder"]), int(points)), daemon=True
        ).start()
    status = process.wait()
    with (SPOOL / "jobs.jsonl").open("a") as jobs:
        jobs.write(
            json.dumps({"number": job["number"], "options": job["options"], "status": status})
            + "\n"
        )


def _run_array(job, script):
    variable, numbers = job["tasks"]
    running = []
    for number in numbers:
        log = Path(job["folder"]) / f"launch-{job['number']}_{number}.log"
        with log.open("a") as output:
            running.append(
                subprocess.Popen(
                    ["bash", str(script)],
                    cwd=job["folder"],
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **job["environment"], variable: str(number)},
                )
            )
    statuses = [process.wait() for process in running]
    with (SPOOL / "jobs.jsonl").open("a") as jobs:
        line = {"number": job["number"], "options": job["options"], "status": max(statuses)}
        jobs.write(json.dumps({**line, "tasks": statuses}) + "\n")


def _give_notice(process, folder, points):
    report = folder / "outcome.jsonl"
    while process.poll() is None:
        if report.exists() and report.read_text().count('{"step"') >= points:
            process.send_signal(signal.SIGUSR1)
            return
        time.sleep(0.02)


def run_tasks(hosts, per_node, command, environment):
    """One process per rank, the environment of each from ``environment(rank, local_rank)``; the first failure ends all.

    A task on a host that is lost is killed as the node would be. Returns the largest exit status.
    """
    tasks = [
        subprocess.Popen(
            command,
            start_new_session=True,
            env={**os.environ, **environment(node * per_node + local, local)},
        )
        for node in range(len(hosts))
        for local in range(per_node)
    ]
    try:
        while any(task.poll() is None for task in tasks):
            lost = down()
            for index, task in enumerate(tasks):
                if hosts[index // per_node] in lost and task.poll() is None:
                    end(task)
            if any(task.poll() for task in tasks):
                break
            time.sleep(0.05)
    finally:
        for task in tasks:
            end(task)
    return max(abs(task.returncode) for task in tasks)


def end(task):
    """Kill a task and all that it started, as a lost node would."""
    for process in [*descendants(task.pid), task.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    task.wait()


def descendants(parent):
    """Processes under ``parent``, in whatever session."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [parent]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
