"""A fake of `ray symmetric-run` on hosts of this machine: the first task runs the command, the others wait.

It refuses what Ray 2.60 refuses: options behind the command, no separator, an address without a port.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "FLUX_TASK_RANK")


def main(words):
    if words[:1] != ["symmetric-run"] or "--" not in words:
        sys.exit(
            f"Error: usage: ray symmetric-run --address A [--min-nodes N] -- COMMAND, not {words}"
        )
    place = words.index("--")
    options = dict(zip(words[1:place:2], words[2:place:2], strict=True))
    if set(options) != {"--address", "--min-nodes"}:
        sys.exit(f"Error: options {sorted(options)}")
    if (
        not re.fullmatch(r"[\w.-]+:\d+", options["--address"])
        or not options["--min-nodes"].isdigit()
    ):
        sys.exit(f"Error: {options}")
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    over = Path(os.environ["FAKE_SPOOL"]) / f"ray-{os.environ.get('HPO_SLOT', '1')}"
    if rank == 0:
        status = subprocess.run(words[place + 1 :], check=False).returncode
        over.write_text(str(status))
        sys.exit(status)
    while not over.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
