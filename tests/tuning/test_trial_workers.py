"""Trials of several processes: the same weights as with one process, on one node and two, and with a killed worker."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import hpo
from hpo.errors import TuningError
from hpo.runs.repository import open_store
from hpo.tuning import trainings
from hpo.tuning.resources import TrialResources, check_gpu_shares

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ray = pytest.importorskip("ray")

STUDY = """\
name: workers
workload: double_digits:DoubleDigits
target: {metric: top1, at_least: 0.9999}
ladder: [64]
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.05, 0.3], role: scaled}
  normalization_batch_size: 16
budget: {trials: 1, epochs_per_trial: 2, evaluations_per_epoch: 2}
"""
DOUBLE = Path(__file__).parents[1] / "trainers"
"""Where the digits in float64 are: in float32 other orders of summation show after some updates."""
QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def ray_with(address="local", **options):
    # without an address, Ray would join any cluster of this machine
    ray.init(address, **QUIET, **options)
    try:
        yield
    finally:
        ray.shutdown()


def swept(folder, resources="", progress=None, workload="DoubleDigits"):
    """The points of the study's one trial, with these resources, and the trial."""
    storage = f"sqlite:///{folder}/hpo.db"
    text = STUDY.replace("DoubleDigits", workload) + resources
    spec = hpo.parse_study(text, folder=DOUBLE)
    result = hpo.run_study(spec, storage, folder=folder / ".hpo", progress=progress)
    (trial,) = result.trials
    with open_store(storage) as store:
        points = store.points(trial.id)
    return [(each.step, each.train_loss, each.loss, each.metric) for each in points], trial


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The trial in one process, this one."""
    points, _ = swept(tmp_path_factory.mktemp("alone"), workload="Here")
    assert len(points) >= 4
    return points


def assert_same(points, alone):
    assert [each[0] for each in points] == [each[0] for each in alone]
    for mine, other in zip(points, alone, strict=True):
        assert mine[1:] == pytest.approx(other[1:], rel=1e-7)


def test_two_workers_on_one_node_train_as_one_process_does(one_ray, alone, tmp_path):
    points, trial = swept(tmp_path, "resources: {workers_per_node: 2}\n")
    assert_same(points, alone)
    assert trial.state == "censored"


def test_two_nodes_train_as_one_process_does(alone, tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        with ray_with(address=cluster.address):
            assert len(ray.nodes()) == 2
            points, _ = swept(tmp_path, "resources: {nodes: 2}\n")
    finally:
        cluster.shutdown()
    assert_same(points, alone)


def test_a_killed_worker_restarts_its_trial_from_its_checkpoint(
    one_ray, alone, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainings, "CHECKPOINT_SECONDS", 0.0)
    killed = []

    class Killer(hpo.Progress):
        def sweep(self, spec, trials, running):
            if running and not killed:
                workers = [number for number in processes() if "TrialWorker" in name_of(number)]
                assert len(workers) == 2, [name_of(number) for number in processes()]
                os.kill(workers[-1], signal.SIGKILL)
                killed.append(time.monotonic())

    points, trial = swept(tmp_path, "resources: {workers_per_node: 2}\n", Killer())
    assert killed
    assert trial.state == "censored", trial.reason
    assert_same(points, alone)


def processes():
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def name_of(number):
    try:
        return Path(f"/proc/{number}/cmdline").read_text()
    except OSError:
        return ""


def resources_of(text, machines):
    return TrialResources.of(hpo.parse_study(STUDY + text), machines)


@pytest.mark.parametrize(
    ("text", "machines", "fit"),
    [
        ("", [{"CPU": 16}], 16),
        ("", [{"CPU": 16, "GPU": 4}], 4),  # a GPU each where there are any
        ("resources: {gpus_per_worker: 0.25}\n", [{"CPU": 16, "GPU": 1}], 4),
        ("resources: {gpus_per_worker: 0.25}\n", [{"CPU": 3, "GPU": 1}], 3),
        ("resources: {gpus_per_worker: 0}\n", [{"CPU": 16, "GPU": 4}], 16),
        ("resources: {workers_per_node: 4}\n", [{"CPU": 6}, {"CPU": 10}], 3),  # none over two nodes
        ("resources: {nodes: 2}\n", [{"CPU": 1}, {"CPU": 3}], 1),  # never twice on one node
        ("resources: {nodes: 2, cpus_per_worker: 2}\n", [{"CPU": 4}, {"CPU": 4}, {"CPU": 4}], 3),
        ("resources: {cpus_per_worker: 0.5}\n", [{"CPU": 2}], 4),
    ],
)
def test_as_many_trials_run_at_once_as_there_is_room_for(text, machines, fit):
    assert resources_of(text, machines).concurrent(machines) == fit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "resources: {cpus_per_worker: 8}\n",
            "a trial needs 1 node with 8 CPUs free, but Ray has 1",
        ),
        (
            "resources: {nodes: 2}\n",
            r"a trial needs 2 nodes with 1 CPU free, but Ray has 1 node\(s\) of at most",
        ),
        ("resources: {gpus_per_worker: 1}\n", "needs 1 node with 1 CPU and 1 GPU free"),
    ],
)
def test_a_trial_for_which_there_is_no_room_is_refused_and_does_not_wait(text, message):
    with pytest.raises(TuningError, match=message):
        resources_of(text, [{"CPU": 4}]).concurrent([{"CPU": 4}])


def test_gpus_that_cannot_be_shared_are_refused():
    gpu = [{"CPU": 8, "GPU": 2}]
    with pytest.raises(TuningError, match="need one GPU each"):
        check_gpu_shares(
            resources_of("resources: {workers_per_node: 2, gpus_per_worker: 0.5}\n", gpu)
        )
    with pytest.raises(TuningError, match="a fraction of one GPU, or whole GPUs"):
        check_gpu_shares(resources_of("resources: {gpus_per_worker: 1.5}\n", gpu))


def test_fractions_of_a_gpu_are_given_out_by_ray(tmp_path, monkeypatch):
    """Four trials at a time on one GPU, of which this machine has none: Ray counts them, the training takes the CPU."""
    spec = STUDY.replace("trials: 1", "trials: 4").replace(
        "epochs_per_trial: 2", "epochs_per_trial: 0.5"
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # Ray would believe that no GPU may be used
    running = []

    class Counting(hpo.Progress):
        def sweep(self, spec, trials, points):
            running.append(sum(trial.state == "running" for trial in trials))

    with ray_with(num_cpus=4, num_gpus=1):
        hpo.run_study(
            hpo.parse_study(spec + "resources: {gpus_per_worker: 0.5}\n", folder=DOUBLE),
            f"sqlite:///{tmp_path}/hpo.db",
            folder=tmp_path / ".hpo",
            progress=Counting(),
        )
    assert max(running) == 2
