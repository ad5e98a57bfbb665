"""Run the steps of plain.py as a Prefect flow: Prefect shows, retries and logs each step.

    pip install largebatch prefect
    export HPO_SERVER=http://127.0.0.1:8642 HPO_TOKEN=lb_...
    python prefect_flow.py bowl.yaml 512 2048

Any task may be retried: submitting a study twice creates only one study, and waiting for it can be repeated.
"""

import sys
from pathlib import Path

from prefect import flow, get_run_logger, task

import hpo
from hpo.errors import UnreachableError


@task(retries=3, retry_delay_seconds=10)
def submit(study_file: str) -> str:
    with hpo.Client() as client:
        return client.submit(Path(study_file)).name


def server_was_away(task, run, state) -> bool:
    """Return True only if the server was unreachable: a study that failed would fail again."""
    return isinstance(state.result(raise_on_failure=False), UnreachableError)


@task(retries=3, retry_delay_seconds=10, retry_condition_fn=server_was_away)
def wait(name: str) -> str:
    logger = get_run_logger()
    with hpo.Client() as client:
        return (
            client.study(name)
            .wait(on_event=lambda event: logger.info("%s: %s", event.kind, event.message))
            .state
        )


@task(retries=3, retry_delay_seconds=10)
def forecast(name: str, global_batch_size: int) -> dict[str, object]:
    with hpo.Client() as client:
        return dict(client.study(name).forecast(global_batch_size).document)


@task
def plan(name: str, global_batch_size: int, folder: str) -> list[str]:
    with hpo.Client() as client:
        return [
            str(path)
            for path in client.study(name).plan(global_batch_size=global_batch_size).write(folder)
        ]


@flow(name="large-batch settings")
def large_batch_settings(
    study_file: str, batches: list[int], folder: str = "plan"
) -> dict[int, dict[str, object]]:
    """Sweep a study on the server, forecast every batch size, plan the first; return the forecasts by batch size."""
    name = submit(study_file)
    ended = wait.submit(name)
    found = [forecast.submit(name, batch, wait_for=[ended]) for batch in batches]
    written = plan.submit(name, batches[0], folder, wait_for=found)
    written.result()
    return {batch: each.result() for batch, each in zip(batches, found, strict=True)}


if __name__ == "__main__":
    for batch, told in large_batch_settings(
        sys.argv[1], [int(text) for text in sys.argv[2:]]
    ).items():
        epochs = told["epochs_to_target"]
        print(f"batch {batch}: {epochs['median']:.3g} epochs to target, trust {told['trust']}")
