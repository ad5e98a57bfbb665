"""Detect atmospheric rivers by the heuristics of Kurth et al. (section III-A) and the released label scripts.

The vapour transport is approximated by |(U850, V850)| * QREFHT, because CAM5's output has wind only at 850 hPa. The
transport is damped towards the equator by 1 - exp(-latitude^2 / (2 * 10^2)), and its global percentile is subtracted
(the 95th in the first script, the 94th in the later one). Connected positive cells form one region, and only long,
narrow regions are kept.

Departures from the scripts: regions continue across the date line (the scripts cut them there), and the width is the
area over the diagonal (the script divides by the north-south extent, so that whether a river is kept depends on its
direction). On a grid coarser than about 400 km, a river is at least two to three cells wide, and the width limit is
raised accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trainers.workloads.segmentation.channels import CHANNELS
from trainers.workloads.segmentation.grid import (
    LatLonGrid,
    Values,
    great_circle_km,
    unit_vectors_on_sphere,
)

Mask = NDArray[np.bool_]
_CELLS_ACROSS = 2.5


@dataclass(frozen=True)
class RiverRules:
    """Detection thresholds in percent of all cells, degrees and km."""

    percentile: float = 95.0
    damping_latitude: float = 10.0
    min_length: float = 1500.0
    max_width: float = 1000.0


def river_mask(
    fields: NDArray[np.float32], grid: LatLonGrid, rules: RiverRules | None = None
) -> Mask:
    """Return a mask ``(height, width)`` of the atmospheric rivers in fields ``(height, width, 16)``."""
    rules = rules or RiverRules()
    regions, count = periodic_regions(transport_anomaly(fields, grid, rules) > 0)
    keep = np.zeros(count + 1, dtype=bool)
    max_width = max(rules.max_width, _CELLS_ACROSS * grid.spacing_km)
    areas = np.bincount(regions.ravel(), np.repeat(grid.cell_areas_km2, grid.width), count + 1)
    for region, box in enumerate(ndimage.find_objects(regions, count), 1):
        rows = box[0]
        length = diagonal_km(np.equal(regions[rows], region), grid.latitudes[rows], grid)
        keep[region] = length > rules.min_length and areas[region] < max_width * length
    return keep[regions]


def transport_anomaly(fields: NDArray[np.float32], grid: LatLonGrid, rules: RiverRules) -> Values:
    """Return the vapour transport, damped at the equator, minus its percentile, in kg/kg m/s, ``(height, width)``."""
    eastward, northward, humidity = (
        fields[..., CHANNELS.index(name)] for name in ("U850", "V850", "QREFHT")
    )
    transport = np.hypot(eastward, northward) * humidity
    damping = 1 - np.exp(-(grid.latitudes**2) / (2 * rules.damping_latitude**2))
    anomaly: Values = transport * damping[:, None] - np.percentile(transport, rules.percentile)
    return anomaly


def periodic_regions(mask: Mask) -> tuple[NDArray[np.int32], int]:
    """Number the regions of edge-connected cells from 1, also across the date line; 0 marks cells in no region."""
    regions, count = ndimage.label(mask)
    parent = np.arange(count + 1)
    for west, east in np.unique(np.stack([regions[:, 0], regions[:, -1]], 1), axis=0).tolist():
        if west and east:
            first, second = sorted((_root(parent, west), _root(parent, east)))
            parent[second] = first
    roots = np.array([_root(parent, region) for region in range(count + 1)])
    names, numbers = np.unique(roots, return_inverse=True)
    return numbers[regions].astype(np.int32), len(names) - 1


def diagonal_km(region: Mask, latitudes: Values, grid: LatLonGrid) -> float:
    """Return the great-circle diagonal of the box around a region, which may cross the date line.

    For a box wider than half of the globe, the great circle would turn back, so the diagonal is measured in two legs.
    """
    extent = _longitude_extent(np.any(region, axis=0)) * (360 / grid.width)
    south, north = latitudes[[0, -1]]
    legs = 1 if extent <= 180 else 2
    corners = unit_vectors_on_sphere(
        np.linspace(south, north, legs + 1), np.linspace(0, extent, legs + 1)
    )
    return float(great_circle_km(corners[1:], corners[:-1]).sum())


def _longitude_extent(columns: Mask) -> int:
    """Return the number of steps from the first to the last column of the box that omits the circle's widest gap."""
    taken = np.flatnonzero(columns)
    gaps = np.diff(np.append(taken, taken[0] + len(columns)))
    return int(len(columns) - gaps.max())


def _root(parent: NDArray[np.int_], region: int) -> int:
    while parent[region] != region:
        region = int(parent[region])
    return region
