import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from hpo.planning.timing.costs import home_cost
from search_spaces.settings import TrainingSettings
from trainers import cost as cost_module
from trainers.cost import WorkloadCost, model_cost, workload_cost
from trainers.errors import WorkloadError
from trainers.numerics.normalization import GhostBatchNorm
from trainers.workloads import CustomLoopWorkload, Workload, load_workload
from trainers.workloads.resnet.model import build_resnet
from trainers.workloads.segmentation.deeplab import DeepLab
from trainers.workloads.segmentation.tiramisu import Tiramisu

pytestmark = pytest.mark.medium


def classes(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def resnet50():
    batch = torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.int64)
    return model_cost(lambda: build_resnet("resnet50", 3, 1000, 64, 2), classes, batch, 0.0)


def test_resnet50_as_published():
    """25.56 million parameters and 4.1 thousand million multiply-adds forward (torchvision's figures of version 1.5).

    The backward pass has two products for each one of the forward pass, but for the gradient of the images.
    """
    found = resnet50()
    assert found.parameters == 25_557_032
    assert found.gradient_tensors == 53 + 2 * 53 + 2
    first = 2 * 112 * 112 * 64 * 3 * 7 * 7
    assert (found.flops_per_sample + first) / 6 == pytest.approx(4.09e9, rel=2e-3)


def test_what_a_small_network_costs_counted_by_hand():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(10, 20), nn.Linear(20, 3)
            self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    batch = torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64)
    found = model_cost(Small, classes, batch, 7.0)
    assert (found.parameters, found.gradient_tensors) == (10 * 20 + 20 + 20 * 3 + 3, 4)
    forward, weights, inputs = 2 * (10 * 20 + 20 * 3), 2 * (10 * 20 + 20 * 3), 2 * 20 * 3
    assert found.flops_per_sample == forward + weights + inputs
    # tanh keeps its 20 values, of which the second layer shares the storage; cross entropy keeps log softmax of 3,
    # and the total weight of the batch, 4 bytes
    assert found.activation_bytes_per_sample == pytest.approx(4 * (20 + 3) + 4 / 4)
    assert found.sample_bytes == 7.0


def test_a_model_that_looks_at_values_is_measured_by_computing():
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 3)

        def forward(self, x):
            return self.layer(x) * (2.0 if x.sum().item() > 0 else 1.0)

    batch = torch.ones(4, 10), torch.zeros(4, dtype=torch.int64)
    assert model_cost(Looking, classes, batch, 0.0).flops_per_sample == 2 * 2 * 30


@pytest.mark.parametrize(
    ("name", "model", "width"), [("deeplabv3plus", DeepLab, 64), ("tiramisu", Tiramisu, 32)]
)
def test_the_published_costs_are_those_of_the_networks_here(name, model, width):
    grid = {"size": (1, 768, 1152), "device": "meta"}
    batch = torch.empty(1, 16, 768, 1152, device="meta"), torch.empty(**grid, dtype=torch.int64)
    found = model_cost(
        lambda: model(name, 16, 3, width, lambda features: GhostBatchNorm(features, 1)),
        classes,
        batch,
        0.0,
    )
    published = home_cost(name)
    assert (found.parameters, found.gradient_tensors) == (
        published.parameters,
        published.gradient_tensors,
    )
    assert found.activation_bytes_per_sample == published.activation_bytes_per_sample
    # the published number of DeepLab counts the padding of dilated convolutions, that of both the fields' gradient
    assert 0.9 < found.flops_per_sample / published.flops_per_sample < 1


def test_the_published_cost_of_resnet50_is_that_of_the_network_here():
    data = {"sample_bytes": 0, "host_seconds_per_sample": 0, "evaluation_samples": 0}
    assert dataclasses.replace(resnet50(), **data) == dataclasses.replace(
        home_cost("resnet50"), **data
    )


def test_a_workload_of_small_images_in_memory():
    workload = load_workload("resnet", {"source": "digits"})
    state = torch.get_rng_state()
    found = workload_cost(workload)
    assert torch.equal(torch.get_rng_state(), state)
    model = workload.build_model(TrainingSettings())
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert found.gradient_tensors == len(list(model.parameters()))
    assert found.sample_bytes == 0
    other = workload_cost(workload, TrainingSettings(normalization_batch_size=64, precision="bf16"))
    assert (
        dataclasses.replace(other, host_seconds_per_sample=found.host_seconds_per_sample) == found
    )
    assert found.evaluation_samples == workload.evaluation_samples
    assert 0 < found.host_seconds_per_sample < 1e-3  # copies of 64 numbers each


class Decoding(Workload):
    """Samples that take a known time of a core each, in as many threads as there are cores."""

    metrics = {"loss": False}
    train_samples, evaluation_samples = 40, 3
    seconds = 0.002

    def __init__(self, data):
        self.threads = ThreadPoolExecutor(2)

    def build_model(self, settings):
        return torch.nn.Linear(1, 1)

    def training_batch(self, indices, epochs, seed):
        list(self.threads.map(self._work, indices.tolist()))
        time.sleep(0.01)  # waiting is no work
        return torch.zeros(len(indices), 1)

    def loss(self, model, batch, settings):
        return model(batch).mean()

    def evaluation_batch(self, indices):
        return torch.zeros(len(indices), 1)

    def _work(self, index):
        started = time.thread_time()
        while time.thread_time() - started < self.seconds:
            pass


def test_seconds_of_a_core_are_counted_over_all_threads_and_waiting_is_not():
    found = workload_cost(Decoding({}))
    assert found.host_seconds_per_sample == pytest.approx(Decoding.seconds, rel=0.25)
    assert (found.parameters, found.evaluation_samples) == (2, 3)


@pytest.mark.skipif(
    not cost_module.PROCESS_IO.exists(), reason="the system does not count what is read"
)
def test_bytes_of_a_sample_are_those_of_its_file(tmp_path):
    rng, sizes = np.random.default_rng(0), []
    for part in ("train", "val"):
        for kind in ("a", "b"):
            folder = tmp_path / part / kind
            folder.mkdir(parents=True)
            for number in range(8):
                Image.fromarray(rng.integers(0, 255, (100, 120, 3), dtype=np.uint8)).save(
                    folder / f"{number}.png"
                )
                if part == "train":
                    sizes.append((folder / f"{number}.png").stat().st_size)
    workload = load_workload(
        "resnet",
        {"source": "image_folder", "path": str(tmp_path), "image_size": 96, "model": "resnet20"},
    )
    assert workload_cost(workload).sample_bytes == pytest.approx(np.mean(sizes), rel=0.05)


@pytest.mark.skipif(
    not cost_module.PROCESS_IO.exists(), reason="the system does not count what is read"
)
def test_bytes_of_a_climate_sample_are_its_fields_and_labels(tmp_path):
    grid = {"height": 48, "width": 72}
    workload = load_workload(
        "segmentation",
        {
            "source": "generated",
            "samples": 6,
            "evaluation_samples": 2,
            **grid,
            "folder": str(tmp_path),
            "model": "deeplabv3plus_small",
        },
    )
    fields = 16 * 48 * 72 * 4
    assert fields <= workload_cost(workload).sample_bytes <= 1.1 * fields


def test_without_a_count_of_what_is_read_the_tensors_of_a_sample_count(monkeypatch, tmp_path):
    monkeypatch.setattr(cost_module, "PROCESS_IO", tmp_path / "none")
    assert workload_cost(load_workload("resnet", {"source": "digits"})).sample_bytes == 8 * 8 + 8


def test_the_noisy_quadratic_costs_what_its_dimensions_say():
    small, large = (
        workload_cost(load_workload("noisy_quadratic", {"modes": modes})) for modes in (10, 30)
    )
    assert (small.parameters, large.parameters) == (10, 30)
    assert large.flops_per_sample == 3 * small.flops_per_sample == 6 * 30


class OwnLoop(CustomLoopWorkload):
    metrics = {"loss": False}
    train_samples = 4

    def __init__(self, data):
        pass

    def begin(self, job, communicator):
        raise NotImplementedError


def test_a_workload_that_trains_itself_says_its_own_cost():
    with pytest.raises(WorkloadError, match=r"OwnLoop.*define cost\(\)"):
        workload_cost(OwnLoop({}))
    own = WorkloadCost(1, 1, 2.0, 3.0, 4.0)

    class Knowing(OwnLoop):
        def cost(self):
            return own

    assert workload_cost(Knowing({})) == own
    assert not issubclass(OwnLoop, Workload)
