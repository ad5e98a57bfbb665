"""A fake of trainers.agents for tests of a script's own steps: each call follows one line of the file `behaviour`.

reach: two points and the outcome; lose: a point, then a failure; lose-host NAMES: the same, and the hosts are lost;
break: a failure before the training begins; wait: a point, then the stop file is awaited. Calls go to the file `calls`.
"""

import json
import os
import sys
import time
from pathlib import Path

from tests.planning.fakes.common import SPOOL

RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "FLUX_TASK_RANK")


def write(line):
    with Path("outcome.jsonl").open("a") as report:
        report.write(line + "\n")


def point():
    step = 1 + Path("outcome.jsonl").read_text().count('{"step"')
    write(json.dumps({"step": step}))


def main(arguments):
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        return 0
    with Path("calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    if "trainers.staging" in arguments:
        return 0
    act, *rest = Path("behaviour").read_text().splitlines() or ["break"]
    Path("behaviour").write_text("\n".join(rest))
    if act == "break":
        return 2
    write('{"started": {}}')
    point()
    if act.startswith("lose"):
        if " " in act:
            (SPOOL / "down").write_text(act.partition(" ")[2])
        return 1
    if act == "wait":
        while not Path("stop").exists():
            time.sleep(0.02)
        return 0
    write('{"outcome": {}}')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
