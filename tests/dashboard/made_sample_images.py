"""Sample images of made-up weather: a round storm, a slanted river of moisture, a prediction with a few errors."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = ["background", "storm", "river"]


def make_sample_images(panels: int = 2, rows: int = 48, columns: int = 72) -> dict[str, Any]:
    return {
        "title": "Weather: fields, labels and prediction",
        "references": {"majority class": 0.3252, "per-pixel linear classifier": 0.4135},
        "classes": CLASSES,
        "panels": [_panel(seed, rows, columns) for seed in range(panels)],
    }


def _panel(seed: int, rows: int, columns: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:rows, 0:columns]
    distance = np.hypot(y - rows * (0.3 + 0.3 * seed), x - columns * 0.3)
    along = np.abs((y - rows * 0.2) - 0.6 * (x - columns * 0.5)) / np.hypot(1, 0.6)
    river = (along < 3) & (x > columns * 0.5)
    storm = distance < 6
    labels = np.where(storm, 1, np.where(river, 2, 0))
    prediction = np.where(distance < 5, 1, np.where((along < 4) & (x > columns * 0.55), 2, 0))
    moisture = (
        np.exp(-distance / 9)
        + np.exp(-along / 4) * (x > columns * 0.45)
        + 0.05 * rng.standard_normal(x.shape)
    )
    pressure = 1 - np.exp(-distance / 8) + 0.03 * rng.standard_normal(x.shape)
    return {
        "name": f"sample {7 + seed}",
        "fields": {"moisture": _grey(moisture), "pressure": _grey(pressure)},
        "labels": labels.tolist(),
        "prediction": prediction.tolist(),
    }


def _grey(field: np.ndarray) -> list[list[int]]:
    return np.rint((field - field.min()) / np.ptp(field) * 255).astype(int).tolist()
