"""Run one study per optimizer with Parsl: the server's workers sweep them, and this script compares the results.

    pip install largebatch parsl
    export HPO_SERVER=http://127.0.0.1:8642 HPO_TOKEN=lb_...
    python parsl_app.py bowl.yaml 512 sgd lars

The apps only wait for the server, so threads in this process suffice. To run them on the nodes of a cluster, give Parsl
a HighThroughputExecutor instead; the apps stay the same.
"""

import sys

import parsl
from parsl.app.app import python_app
from parsl.config import Config
from parsl.executors import ThreadPoolExecutor


@python_app
def sweep(study_file, optimizer):
    """Sweep the study with this optimizer; return the name of the study once it has ended, in whatever state."""
    import hpo

    plain = hpo.load_study(study_file).to_dict()
    plain["name"] = f"{plain['name']}/{optimizer}"
    plain["search"]["optimizer"] = optimizer
    with hpo.Client() as client:
        study = client.submit(hpo.StudySpec.from_dict(plain))
        study.wait(check=False)
        return study.name


@python_app
def forecast(name, global_batch_size):
    """Return the forecast for the study's optimizer at this batch size as one line, or the reason why there is none."""
    import hpo

    with hpo.Client() as client:
        study = client.study(name)
        status = study.status()
        if status.state != "finished":
            return f"{status.state}: {status.message}"
        try:
            found = study.forecast(global_batch_size)
        except hpo.HpoError as error:
            return str(error)
        epochs = found.epochs_to_target
        return f"{epochs.median:.3g} epochs to target ({epochs.low:.3g} to {epochs.high:.3g}), trust {found.trust}"


def main(study_file, global_batch_size, optimizers):
    names = {optimizer: sweep(study_file, optimizer) for optimizer in optimizers}
    found = {optimizer: forecast(name, int(global_batch_size)) for optimizer, name in names.items()}
    for optimizer, future in found.items():
        print(f"{optimizer}: {future.result()}")


if __name__ == "__main__":
    with parsl.load(Config(executors=[ThreadPoolExecutor(label="server", max_threads=8)])):
        main(sys.argv[1], sys.argv[2], sys.argv[3:] or ["sgd"])
