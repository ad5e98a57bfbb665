"""The project's own techniques and workloads pass the contract tests that authors of plug-ins are given."""

from typing import Any

from hpo import testing
from search_spaces.techniques import TECHNIQUES
from trainers.workloads.described import WORKLOADS

CONTRACTS: dict[str, type] = {
    "optimizer": testing.OptimizerContract,
    "decay": testing.DecayContract,
    "warmup_shape": testing.WarmupContract,
    "batch_control": testing.BatchControlContract,
}
MORE: dict[tuple[str, str], dict[str, Any]] = {
    ("optimizer", "rmsprop_warmup"): {"rmsprop_center_epochs": 1.0},
    ("optimizer", "ademamix"): {"ademamix_warmup_epochs": 2.0},
    ("optimizer", "lars"): {"trust_coefficient": 0.1},
    ("decay", "step"): {"decay_milestones": [3.0, 6.0]},
    ("decay", "piecewise"): {"decay_milestones": [3.0], "decay_values": [1.0, 0.1]},
    ("batch_control", "piecewise"): {"batch_milestones": [3.0, 5.0], "batch_factors": [2.0, 4.0]},
    ("batch_control", "doubling"): {"batch_limit_factor": 4.0, "batch_rate_rule": "sqrt"},
    ("batch_control", "grow"): {"decay": "step", "decay_milestones": [3.0], "decay_factor": 0.5},
}
for setting, registry in TECHNIQUES.items():
    for name in registry.built_in:
        title = f"Test_{setting}_{name}"
        body = {"name": name, "settings": MORE.get((setting, name), {})}
        globals()[title] = type(title, (CONTRACTS[setting],), body)

SMALL: dict[str, dict[str, Any]] = {
    "resnet": {"source": "digits"},
    "segmentation": {
        "samples": 32,
        "evaluation_samples": 8,
        "height": 24,
        "width": 36,
        "model": "tiramisu_small",
    },
    "language": {"sequence_length": 16, "train_samples": 64, "evaluation_samples": 16, "width": 16},
    "noisy_quadratic": {"modes": 20, "train_samples": 256},
}
"""A small data section of each workload but ``program``, which trains nothing itself."""
for name in sorted(WORKLOADS.built_in.keys() - {"program"}):
    title = f"Test_workload_{name}"
    body = {"name": name, "data": SMALL[name]}
    globals()[title] = type(title, (testing.WorkloadContract,), body)
