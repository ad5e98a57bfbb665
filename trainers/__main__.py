"""Run one training from a job file: under plain python, horovodrun or torchrun.

    python -m trainers JOB.json --report OUT.jsonl
    horovodrun -np 4 python -m trainers JOB.json --backend horovod --report OUT.jsonl
    torchrun --nproc-per-node 4 -m trainers JOB.json --backend torch --report OUT.jsonl

Worker 0 writes one JSON line per evaluation and at the end {"outcome": {...}}, then
{"exhibit": {...}} where the workload shows its model. Exit status: 0 the training
ended (reached, censored or diverged: see the outcome), 2 the job, the data or the set-up is wrong, 1 any
other failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.command import exit_status, leave
from trainers.job import TrainingJob
from trainers.memory import keep_freed_memory
from trainers.report import ReportFile

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.run import TrainingRun


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return exit_status(_run, _parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, help="the job, a JSON file")
    parser.add_argument("--backend", default="single", choices=("single", "horovod", "torch"),
                        help="how the workers were started (default: %(default)s)")
    parser.add_argument("--report", type=Path, required=True, help="where worker 0 writes JSON lines")
    parser.add_argument("--checkpoint", type=Path,
                        help="saved after each evaluation; resumed from if it exists")
    parser.add_argument("--threads", type=int, help="CPU threads per worker (default: PyTorch's choice)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS",
                        help="a worker silent for so long is an error (default: %(default)g)")
    _add_communication(parser)
    return parser


def _add_communication(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all-reduce", default="default", choices=("default", "torus", "hierarchical", "masters"),
                        help="how gradients are summed: the backend's own way, a 2D torus, within the nodes and then "
                        "between them, or by one master a node (default: %(default)s)")
    parser.add_argument("--group-size", type=int, metavar="WORKERS",
                        help="workers in a row of the torus (default: nearest to a square) or in a node (default: as "
                        "torchrun started them); torch only")
    parser.add_argument("--fusion-megabytes", type=float, metavar="MB",
                        help="Horovod's tensor fusion threshold (default: horovodrun's)")
    parser.add_argument("--cycle-milliseconds", type=float, metavar="MS",
                        help="Horovod's cycle time (default: horovodrun's)")


def _run(options: argparse.Namespace) -> None:
    job = TrainingJob.load(options.job)
    keep_freed_memory()
    import torch

    from trainers.distributed import connect
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    communicator = connect(options.backend, timeout_seconds=options.timeout, all_reduce=options.all_reduce,
                           group_size=options.group_size, fusion_megabytes=options.fusion_megabytes,
                           cycle_milliseconds=options.cycle_milliseconds)
    _train(job, communicator, ReportFile(options.report), options.checkpoint)
    communicator.close()


def _train(job: TrainingJob, communicator: Communicator, report: ReportFile, checkpoint: Path | None) -> None:
    from trainers.train import finish, resume
    from trainers.workloads import begin_training
    training = begin_training(job, communicator)
    if checkpoint is not None:
        resume(training, communicator, checkpoint)
    if communicator.rank == 0:
        report.start(training.progress.step)
    outcome = finish(training, communicator, report.point, checkpoint=checkpoint)
    if communicator.rank == 0:
        report.outcome(outcome)
        _show(training, report)


def _show(training: TrainingRun, report: ReportFile) -> None:
    """Report what the workload shows of its model; where that fails, the outcome stands and standard error says why."""
    from trainers.exhibits import check_exhibit
    try:
        exhibit = training.exhibit()
        if exhibit is not None:
            report.exhibit(check_exhibit(exhibit))
    except Exception as error:
        print(f"no exhibit: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    leave(main())
