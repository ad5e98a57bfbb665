"""Execute one training run from a job file, under plain python, horovodrun or torchrun.

    python -m trainers JOB.json --report OUT.jsonl
    horovodrun -np 4 python -m trainers JOB.json --backend horovod --report OUT.jsonl
    torchrun --nproc-per-node 4 -m trainers JOB.json --backend torch --report OUT.jsonl

Worker 0 writes one JSON line per evaluation and {"outcome": {...}} at the end, then {"sample_images": {...}} if the
workload produces sample images of its model. With --checkpoint, a run resumes from where it stopped. SIGUSR1, SIGTERM
(except under torchrun and horovodrun) or the appearance of the --stop-file make the run save a checkpoint at its next
evaluation and exit. Each start writes {"started": {...}}.

The exit status is 0 if training ended (reached, censored or diverged: see the outcome), 2 if the job, the data or the
setup is wrong, 75 if the run was asked to stop and has saved a checkpoint (0 under torchrun and horovodrun, which treat
any other status as a crash), and 1 for any other failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.command import end_trainer_process, trainer_exit_status
from trainers.distributed.communicator import ALL_REDUCES, BACKENDS
from trainers.distributed.device import COMPILE_VARIABLE, DEVICES, pin_near_gpu
from trainers.job import TrainingJob
from trainers.lifeline import end_with_launcher
from trainers.loop.restarts import (
    STOPPED,
    StopRequests,
    count_nodes,
    finish_or_stop,
    stopped_status,
)
from trainers.numerics.memory import keep_freed_memory
from trainers.numerics.threads import local_rank_and_size, own_cores
from trainers.report import ReportFile, TrainingStart

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.report import TrainingOutcome
    from trainers.workloads.training_run import AnyTraining


def main(arguments: list[str] | None = None) -> int:
    """Execute the training run of a job file (``python -m trainers``); return the exit status."""
    end_with_launcher()
    return trainer_exit_status(_run, _parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, help="the job file (JSON)")
    parser.add_argument(
        "--backend",
        default="single",
        choices=BACKENDS,
        help="how the workers were started (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, required=True, help="where worker 0 writes JSON lines"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="saved after each evaluation; training resumes from it if it exists",
    )
    parser.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="save at the first evaluation after this many minutes, not at every one",
    )
    parser.add_argument(
        "--stop-file",
        type=Path,
        metavar="FILE",
        help="when this file appears, save at the next evaluation and exit",
    )
    parser.add_argument(
        "--data-path",
        type=Path,
        metavar="FOLDER",
        help="path of the data on this node, instead of the path in the job",
    )
    parser.add_argument(
        "--threads", type=int, help="CPU threads per worker (default: PyTorch's choice)"
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        help="device (default: HPO_DEVICE, else a GPU if there is one)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the training pass with torch.compile (default: HPO_COMPILE, else no)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds of silence after which a worker counts as lost (default: %(default)g)",
    )
    _add_communication(parser)
    _add_nodes(parser)
    return parser


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group(
        "a program", "for a workload that starts its own workers: run this once per node"
    )
    nodes.add_argument("--hosts", default="localhost", help="the nodes, in order: a,b,c")
    nodes.add_argument("--workers-per-node", type=int, default=1, metavar="N")
    nodes.add_argument(
        "--port",
        type=int,
        help="port for the rendezvous of its workers on the first of several nodes",
    )
    nodes.add_argument("--attempt", default="0", help="distinguishes the starts of one run")


def _add_communication(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all-reduce",
        default="default",
        choices=ALL_REDUCES,
        help="how gradients are summed: the backend's own way, a 2D torus, within the nodes and then "
        "between them, or by one master per node (default: %(default)s)",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="WORKERS",
        help="workers in a row of the torus (default: nearest to a square) or in a node (default: as "
        "torchrun started them); torch only",
    )
    parser.add_argument(
        "--fusion-megabytes",
        type=float,
        metavar="MB",
        help="Horovod's tensor fusion threshold (default: horovodrun's)",
    )
    parser.add_argument(
        "--cycle-milliseconds",
        type=float,
        metavar="MS",
        help="Horovod's cycle time (default: horovodrun's)",
    )


def _run(options: argparse.Namespace) -> int | None:
    job = TrainingJob.load(options.job)
    if job.workload == "program":
        return _run_program(job, options)
    keep_freed_memory()
    if options.compile:
        os.environ[COMPILE_VARIABLE] = "inductor"
    import torch

    from trainers.distributed import connect

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    communicator = connect(
        options.backend,
        timeout_seconds=options.timeout,
        all_reduce=options.all_reduce,
        group_size=options.group_size,
        fusion_megabytes=options.fusion_megabytes,
        cycle_milliseconds=options.cycle_milliseconds,
        device=options.device,
    )
    here, of = local_rank_and_size(os.environ)
    cores = pin_near_gpu(communicator.device, here, of)
    if cores is not None and options.threads is None:
        own_cores(cores)
    ended = _train(job, communicator, ReportFile(options.report), options)
    communicator.close()
    return None if ended else stopped_status(os.environ)


def _run_program(job: TrainingJob, options: argparse.Namespace) -> int | None:
    from trainers.workloads.program.launched import ProgramNodes, run_program

    hosts = options.hosts.split(",")
    nodes = ProgramNodes(hosts, options.workers_per_node, options.port, options.attempt)
    with StopRequests(options.stop_file) as stop:
        ended = run_program(job, ReportFile(options.report), nodes, stop.asked)
    return None if ended else STOPPED


def _train(
    job: TrainingJob, communicator: Communicator, report: ReportFile, options: argparse.Namespace
) -> bool:
    """Return True if the training ran to its end, False if it was stopped early."""
    training = _begin(job, communicator, options.data_path)
    if options.checkpoint is None:
        from trainers.loop.restarts import finish_training

        if communicator.rank == 0:
            report.start()
        outcome: TrainingOutcome | None = finish_training(training, communicator, report.point)
    else:
        outcome = _go_on(job, training, communicator, report, options)
    if communicator.rank == 0 and outcome is not None:
        report.outcome(outcome)
        _show(training, report)
    return outcome is not None


def _begin(job: TrainingJob, communicator: Communicator, data_path: Path | None) -> AnyTraining:
    """Return the run before its first update. The job does not hold the data path, so checkpoints can be moved."""
    from trainers.begin import begin_training
    from trainers.workloads import load_workload

    if data_path is None:
        return begin_training(job, communicator)
    workload = load_workload(job.workload, {**job.data, "path": str(data_path)}, job.search_path)
    return begin_training(job, communicator, workload=workload)


def _go_on(
    job: TrainingJob,
    training: AnyTraining,
    communicator: Communicator,
    report: ReportFile,
    options: argparse.Namespace,
) -> TrainingOutcome | None:
    from trainers.loop.restarts import resume_from_checkpoint

    resume_from_checkpoint(training, communicator, options.checkpoint)
    nodes = count_nodes(communicator, os.environ)
    if communicator.rank == 0:
        step = training.progress.step
        start = TrainingStart(step, communicator.size, nodes, job.digest(), job.seed)
        report.start(step, None if training.finished else start)
    with StopRequests(options.stop_file) as stop:
        return finish_or_stop(
            training,
            communicator,
            report.point,
            checkpoint=options.checkpoint,
            seconds_between=60 * options.checkpoint_minutes,
            stop=stop,
        )


def _show(training: AnyTraining, report: ReportFile) -> None:
    """Report the workload's sample images. If that fails, the outcome stands and the error goes to standard error."""
    from trainers.loop.sample_images import check_sample_images

    try:
        images = training.sample_images()
        if images is not None:
            report.sample_images(check_sample_images(images))
    except Exception as error:
        print(f"no sample images: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_trainer_process(main())
