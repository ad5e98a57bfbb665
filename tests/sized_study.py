"""A study of language models over batch size, width and training length."""

from __future__ import annotations

from typing import Any

SIZED: dict[str, Any] = {
    "name": "sized",
    "workload": "language",
    "data": {"source": "python", "sequence_length": 64, "train_samples": 2048},
    "target": {"metric": "loss", "best_within": {"samples": 8192}},
    "ladder": {"global_batch_size": [16, 32, 64], "width": [16, 32], "samples": [1024, 2048]},
    "full_scale": {"global_batch_size": 128, "width": 64, "samples": 8192},
    "search": {
        "optimizer": "adamw",
        "learning_rate": {"log_uniform": [0.001, 0.1], "role": "scaled"},
    },
    "budget": {"trials": 48},
}
