"""The memory, time and cost of a large model in a plan, against independent counts."""

from __future__ import annotations

from typing import Any

import pytest

from hpo.planning.placement.placements import memory_needs
from hpo.study.jobs import workload_data
from hpo.study.sizes import full_scale_sizes, points, sample_cost_share
from hpo.study.spec import StudySpec
from search_spaces.settings import TrainingSettings
from trainers.cost import WorkloadCost, workload_cost
from trainers.workloads import load_workload

BYTES, LENGTH, DEPTH = 256, 32, 2
RESNET_WIDTH, PLACES = 64, 8  # digits are 8 x 8


def study(workload: str, data: dict[str, Any], sizes: dict[str, list[int]], full: dict[str, int]):
    return StudySpec.from_dict(
        {
            "name": "cost",
            "workload": workload,
            "data": data,
            "target": {"metric": "loss", "at_most": 0.1},
            "ladder": {"global_batch_size": [16, 32], **sizes},
            "full_scale": {"global_batch_size": 64, **full},
            "search": {
                "optimizer": "adamw",
                "learning_rate": {"log_uniform": [0.001, 0.1], "role": "scaled"},
            },
            "budget": {"trials": 20, "epochs_per_trial": 4},
        }
    )


def cost_at_full_scale(spec: StudySpec) -> WorkloadCost:
    return workload_cost(load_workload(spec.workload, workload_data(spec)))


def language(width: int, depth: int = DEPTH) -> tuple[int, float]:
    """Parameters and FLOPs a sequence of a decoder, from its matrices: 6 for each weight and position.

    Attention multiplies queries and keys, and weights and values, at every pair of positions: 4 n^2 d a layer forward,
    twice that backward. The embeddings are looked up.
    """
    matrices = depth * (3 + 1 + 4 + 4) * width**2 + BYTES * width
    biases = depth * (3 + 1 + 4 + 1) * width
    norms = (2 * depth + 1) * 2 * width
    tables = (BYTES + LENGTH) * width
    attention = depth * 3 * 4 * LENGTH**2 * width
    return matrices + biases + norms + tables, 6.0 * matrices * LENGTH + attention


def resnet_20(width: int, classes: int = 10) -> tuple[int, float]:
    """Parameters and FLOPs of a picture of resnet20: a stem and three stages of six 3 x 3 convolutions.

    Each stage has twice the features on a quarter of the places. The pictures themselves need no gradient.
    """
    weights, products, inputs, places = 9 * 1 * width, 0.0, width, PLACES**2
    first = 2.0 * 9 * width * places
    norms = 2 * width
    for stage in range(3):
        outputs = width << stage
        if stage:
            places //= 4
        for _ in range(6):
            weights += 9 * inputs * outputs
            products += 9 * inputs * outputs * places
            norms += 2 * outputs
            inputs = outputs
    classifier = inputs * classes
    flops = 2 * first + 3 * 2 * (products + classifier)
    return weights + norms + classifier + classes, flops


def test_a_language_model_at_the_large_width_and_depth():
    spec = study(
        "language",
        {
            "source": "python",
            "train_samples": 64,
            "evaluation_samples": 16,
            "sequence_length": LENGTH,
        },
        {"width": [32, 64], "depth": [1, 2]},
        {"width": 256, "depth": 4},
    )
    found = cost_at_full_scale(spec)
    parameters, flops = language(256, 4)
    assert found.parameters == parameters
    assert found.flops_per_sample == pytest.approx(flops, rel=0.02)


def test_a_residual_network_at_the_large_width():
    spec = study(
        "resnet",
        {"source": "digits", "model": "resnet20"},
        {"width": [8, 16]},
        {"width": RESNET_WIDTH},
    )
    found = cost_at_full_scale(spec)
    parameters, flops = resnet_20(RESNET_WIDTH)
    assert found.parameters == parameters
    assert found.flops_per_sample == pytest.approx(flops, rel=0.02)


def test_segmentation_grows_in_the_width_of_its_network_and_not_of_its_grid():
    data = {
        "source": "generated",
        "samples": 16,
        "evaluation_samples": 8,
        "height": 16,
        "width": 24,
        "model": "deeplabv3plus_small",
    }
    spec = study("segmentation", data, {"width": [4, 8]}, {"width": 16})
    built = workload_data(spec)
    assert (built["width"], built["model_width"]) == (24, 16)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_memory_of_the_large_model_is_that_of_its_parameters(optimizer: str):
    """fp32 weights and gradients, and of Adam two moments, of SGD one buffer: 4 bytes each."""
    parameters, _ = language(256)
    cost = WorkloadCost(parameters, 1, 1.0, 100.0, 0.0)
    needs = memory_needs(cost, TrainingSettings(optimizer=optimizer), 1e9)
    states = {"adamw": 2, "sgd": 1}[optimizer]
    assert needs.state == 4 * parameters * (2 + states)
    assert needs.per_sample == 100.0


@pytest.mark.parametrize(
    ("workload", "data", "sizes", "full", "count"),
    [
        (
            "language",
            {"source": "python", "train_samples": 64, "sequence_length": LENGTH},
            {"width": [64, 128]},
            {"width": 512},
            lambda point: language(dict(point)["width"])[1],
        ),
        (
            "resnet",
            {"source": "digits", "model": "resnet20"},
            {"width": [16, 32]},
            {"width": 128},
            lambda point: resnet_20(dict(point)["width"])[1],
        ),
    ],
)
def test_a_sample_of_a_smaller_model_costs_what_its_operations_are_of_the_large_ones(
    workload, data, sizes, full, count
):
    """As the width squared: right for wide networks, and for narrow ones within a factor that is told here."""
    spec = study(workload, data, sizes, full)
    for point in points(spec):
        exact = count(point) / count(full_scale_sizes(spec))
        assert sample_cost_share(spec, point) == pytest.approx(exact, rel=0.5)
