"""Run the trials of a study with submitit: as agents on a Slurm cluster, or on this machine as a test.

    pip install largebatch submitit
    export HPO_SERVER=http://login.example:8642 HPO_TOKEN=lb_...
    python submitit_agents.py study.yaml --jobs 8 --minutes 55 --at 2048 --partition gpu --gpus 1
    python submitit_agents.py bowl.yaml --jobs 2 --cluster local --at 512

Each job runs `hpo agent`, which requests a trial from the server, trains it, and requests the next one until the study
or the job's time slot ends. An unfinished trial goes to the next agent. Run the same command again to submit further
jobs for the remaining trials.
"""

import argparse
import sys

import submitit
from submitit.helpers import CommandFunction

import hpo

LEAVING_SECONDS = 60.0
"""The time before the end of its slot at which a job stops taking trials and returns the current one."""


def executor(given: argparse.Namespace) -> submitit.AutoExecutor:
    """Return the executor for the jobs; if no cluster is named, Slurm where it is available, else this machine."""
    made = submitit.AutoExecutor(folder=given.folder, cluster=given.cluster)
    made.update_parameters(
        name="largebatch",
        timeout_min=given.minutes,
        cpus_per_task=given.cpus,
        gpus_per_node=given.gpus,
        slurm_array_parallelism=given.jobs,
        **({"slurm_partition": given.partition} if given.partition else {}),
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="the study's YAML file")
    parser.add_argument("--at", type=int, required=True, metavar="B", help="global batch size")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--minutes", type=int, default=55, help="length of a job's slot")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--partition")
    parser.add_argument("--cluster", choices=["slurm", "local", "debug"])
    parser.add_argument("--folder", default="submitit", help="shared folder for the logs")
    given = parser.parse_args()
    with hpo.Client() as client:
        study = client.submit(given.study, for_agents=True)
        words = [sys.executable, "-m", "hpo.cli.main", "agent", study.name]
        words += ["--stop-after", str(max(60 * given.minutes - LEAVING_SECONDS, LEAVING_SECONDS))]
        cluster = executor(given)
        with cluster.batch():
            jobs = [
                cluster.submit(CommandFunction(words, verbose=False)) for _ in range(given.jobs)
            ]
        for job in jobs:
            job.result()  # raises with the job's log if the job failed
            print(f"job {job.job_id} has ended", file=sys.stderr)
        state = study.status().state
        if state != "finished":
            print(f"study {study.name} is {state}: submit again to finish it")
            return
        forecast = study.forecast(given.at)
        epochs, rate = forecast.epochs_to_target, forecast.settings["learning_rate"]
        print(
            f"batch {given.at}: {epochs.median:.3g} epochs to target ({epochs.low:.3g} to {epochs.high:.3g}), "
            f"learning rate {rate.median:.3g}, trust {forecast.trust}"
        )


if __name__ == "__main__":
    main()
