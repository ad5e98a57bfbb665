"""Submits a plan's folder to its scheduler, or explains how to do so if the scheduler's command is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo.errors import LaunchError
from hpo.planning.launchers import launcher_description
from hpo.planning.schedulers import SchedulerDescription
from search_spaces.plugins import load_attribute

SCRIPT = "launch.sh"


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job: its number or the scheduler's answer, and the folder that it writes to."""

    launcher: str
    job: str
    folder: Path


def submit(
    launcher: str,
    folder: Path,
    *,
    account: str | None = None,
    partition: str | None = None,
    program: Sequence[str] = (),
) -> SubmittedJob:
    """Submit the script of ``folder``; raise :class:`LaunchError` if the scheduler is missing or refuses it.

    ``account`` and ``partition`` (some schedulers call them project and queue) also apply to further slots of the run.
    ``program`` is the command that submits the script, if it is not the usual one.
    """
    its = launcher_description(launcher)
    if its.submits:
        return SubmittedJob(launcher, load_attribute(its.submits)(folder), folder)
    if not its.program:
        raise LaunchError(
            f"this launcher has no scheduler: "
            f"{_by_hand(folder, f'run {SCRIPT} as described in its first lines')}"
        )
    words = _command(its, account, partition, program or its.program)
    if shutil.which(words[0]) is None:
        command = " ".join([*words, "<" if its.reads_script else "", SCRIPT]).replace("  ", " ")
        raise LaunchError(
            f"there is no {words[0]} here: {_by_hand(folder, f'run `{command}` in it')}; --workers N "
            "runs the plan on this machine instead"
        )
    if not its.reads_script:
        words.append(f"./{SCRIPT}" if program else SCRIPT)
    text = (folder / SCRIPT).read_text(encoding="utf-8") if its.reads_script else None
    handed = {"HPO_ACCOUNT": account, "HPO_PARTITION": partition}
    done = subprocess.run(
        words,
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **{name: value for name, value in handed.items() if value}},
    )
    if done.returncode:
        raise LaunchError(
            f"{words[0]} refused {folder / SCRIPT}: {(done.stderr or done.stdout).strip()}"
        )
    return SubmittedJob(launcher, done.stdout.strip(), folder)


def _command(
    its: SchedulerDescription, account: str | None, partition: str | None, program: Sequence[str]
) -> list[str]:
    words = list(program)
    for option, value in ((its.account, account), (its.partition, partition)):
        if value and option.startswith("--"):
            words.append(f"{option}={value}")
        elif value:
            words += [option, value]
    handed = {"HPO_ACCOUNT": account, "HPO_PARTITION": partition}
    if not its.hands_on and (account or partition):
        words += ["-v", ",".join(f"{name}={value}" for name, value in handed.items() if value)]
    return words


def _by_hand(folder: Path, how: str) -> str:
    return (
        f"copy the folder {folder} to the machine, onto a file system that its nodes share, "
        f"and {how}"
    )
