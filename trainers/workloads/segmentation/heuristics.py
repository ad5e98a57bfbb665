"""Compute labels from the fields alone, as in the climate data set; tropical cyclones take precedence over rivers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainers.workloads.segmentation.channels import CYCLONE, RIVER
from trainers.workloads.segmentation.cyclones import CycloneRules, cyclone_mask
from trainers.workloads.segmentation.grid import lat_lon_grid
from trainers.workloads.segmentation.rivers import RiverRules, river_mask


def make_heuristic_labels(
    fields: NDArray[np.float32],
    cyclones: CycloneRules | None = None,
    rivers: RiverRules | None = None,
) -> NDArray[np.uint8]:
    """Return the class of each pixel, ``(height, width)``, for fields ``(height, width, 16)`` on CAM5's global grid."""
    grid = lat_lon_grid(*fields.shape[:2])
    labels = np.zeros(fields.shape[:2], dtype=np.uint8)
    labels[river_mask(fields, grid, rivers)] = RIVER
    labels[cyclone_mask(fields, grid, cyclones)] = CYCLONE
    return labels
