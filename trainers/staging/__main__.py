"""Stage shard files on this node, together with the other nodes; node 0 prints a summary as JSON.

    python -m trainers.staging SHARED LOCAL [--mode all|partition] [--threads N]
    torchrun --nnodes N --nproc-per-node 1 -m trainers.staging SHARED LOCAL --backend torch

Exit status: 0 if every file is in place, 2 if the data, the folders or the setup are wrong, 1 for any other failure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainers.command import end_trainer_process, trainer_exit_status
from trainers.distributed.communicator import BACKENDS
from trainers.lifeline import end_with_launcher
from trainers.staging.plan import MODES


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    end_with_launcher()
    return trainer_exit_status(_run, _parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainers.staging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "shared", type=Path, help="the folder that every node can read; subfolders are staged too"
    )
    parser.add_argument("local", type=Path, help="the folder on this node's own disk")
    parser.add_argument(
        "--backend",
        default="single",
        choices=BACKENDS,
        help="how the processes, one per node, were started (default: %(default)s)",
    )
    parser.add_argument(
        "--mode",
        default="all",
        choices=MODES,
        help="every file on every node, or a random share on each (default: %(default)s)",
    )
    parser.add_argument(
        "--files-per-node",
        type=int,
        metavar="N",
        help="with partition: files on each node; beyond its share they are drawn from the others'",
    )
    parser.add_argument(
        "--pattern", default="*", help="pattern of the files to stage, e.g. '*.h5' (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the shares (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=4, help="files read at once (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds without a response until a node counts as lost (default: %(default)s)",
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    from trainers.distributed import connect
    from trainers.staging.nodes import stage

    communicator = connect(options.backend, timeout_seconds=options.timeout)
    result = stage(
        options.shared,
        options.local,
        communicator,
        mode=options.mode,
        pattern=options.pattern,
        seed=options.seed,
        files_per_node=options.files_per_node,
        threads=options.threads,
    )
    if communicator.rank == 0:
        print(json.dumps(result.to_dict()), flush=True)
    communicator.close()


if __name__ == "__main__":
    end_trainer_process(main())
