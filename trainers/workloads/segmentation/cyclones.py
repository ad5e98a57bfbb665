"""Detect tropical cyclones by the published heuristics: TECA's criteria for the centre, then the label scripts' mask.

A centre (TECA, teca_tc_detect with its default thresholds) is a minimum of the sea-level pressure that rises by 4 hPa
within 5 degrees, with cyclonic vorticity at 850 hPa of at least 1.6e-4 1/s within 2 degrees, and a warm core: the mean
of T200 and T500 is 0.8 K above its surroundings. Its radius r0 is where the mean wind has fallen to 17 m/s, the first
step of the Saffir-Simpson scale. The mask (create_multichannel_cropped_labels.py) is computed in the box of r0 + 6.6
degrees around the centre: take the largest 8-connected region of cells above the field's 93rd percentile in the box for
each of TMQ, U850, V850 and PRECT, and then the largest region of their union.

Departures: a single instant has no track, so TECA's rules on duration are replaced by a latitude limit and by the
requirement that the pressure rise on all sides. Distances are at least two cells, and the vorticity threshold decreases
as the grid spacing exceeds 50 km, because a coarse grid flattens the vortex. Boxes continue across the date line.
Every storm keeps its whole mask (the script rebuilds all masks from TMQ for each storm, so that only the last storm
keeps the parts from the other fields).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trainers.workloads.segmentation.channels import CHANNELS
from trainers.workloads.segmentation.grid import (
    EARTH_RADIUS_KM,
    LatLonGrid,
    Values,
    great_circle_km,
)
from trainers.workloads.segmentation.rivers import Mask

_KM_PER_DEGREE = np.radians(1) * EARTH_RADIUS_KM
_FULL_VORTICITY_SPACING = 50.0
_EIGHT = np.ones((3, 3), dtype=bool)
_MASK_CHANNELS = ("TMQ", "U850", "V850", "PRECT")


@dataclass(frozen=True)
class CycloneRules:
    """Detection thresholds in 1/s, Pa, K, degrees, m/s and percent of the box."""

    min_vorticity: float = 1.6e-4
    min_pressure_rise: float = 400.0
    min_core_warmth: float = 0.8
    core_radius: float = 2.0
    surroundings_radius: float = 5.0
    max_latitude: float = 40.0
    storm_wind: float = 17.0
    box_margin: float = 6.6
    percentile: float = 93.0


@dataclass(frozen=True)
class CycloneCentre:
    """A detected cyclone: its position, and the radius in degrees at which its wind has fallen to storm strength."""

    latitude: float
    longitude: float
    radius: float


def cyclone_mask(
    fields: NDArray[np.float32], grid: LatLonGrid, rules: CycloneRules | None = None
) -> Mask:
    """Return a mask ``(height, width)`` of the tropical cyclones in fields ``(height, width, 16)``."""
    rules = rules or CycloneRules()
    mask = np.zeros((grid.height, grid.width), dtype=bool)
    for centre in cyclone_centres(fields, grid, rules):
        rows, columns = _box(
            grid, centre.latitude, centre.longitude, centre.radius + rules.box_margin
        )
        parts = np.zeros((len(rows), len(columns)), dtype=bool)
        for name in _MASK_CHANNELS:
            values = fields[..., CHANNELS.index(name)][np.ix_(rows, columns)]
            parts |= _largest_region(values > np.percentile(values, rules.percentile))
        mask[np.ix_(rows, columns)] |= _largest_region(parts)
    return mask


def cyclone_centres(
    fields: NDArray[np.float32], grid: LatLonGrid, rules: CycloneRules | None = None
) -> list[CycloneCentre]:
    """Find the centres of the tropical cyclones in fields ``(height, width, 16)``."""
    rules = rules or CycloneRules()
    names = ("U850", "V850", "UBOT", "VBOT", "PSL", "T200", "T500")
    east, north, east_low, north_low, pressure, high, middle = (
        fields[..., CHANNELS.index(name)] for name in names
    )
    rotation = grid.vorticity(east, north) * np.sign(grid.latitudes)[:, None]
    core, speed = (high + middle) / 2, np.hypot(east_low, north_low)
    cell = grid.spacing_km / _KM_PER_DEGREE
    inner, outer = max(rules.core_radius, 2 * cell), max(rules.surroundings_radius, 3.5 * cell)
    threshold = rules.min_vorticity * min(1.0, _FULL_VORTICITY_SPACING / grid.spacing_km)
    found = []
    for row, column in _pressure_minima(pressure, grid, inner, rules.max_latitude):
        latitude, longitude = float(grid.latitudes[row]), float(grid.longitudes[column])
        box = np.ix_(*_box(grid, latitude, longitude, outer + 1.5 * cell))
        degrees = great_circle_km(grid.points[box], grid.points[row, column]) / _KM_PER_DEGREE
        near, around = degrees <= inner, np.abs(degrees - outer) <= 0.75 * cell
        closed = pressure[box][around].min() - pressure[row, column] >= rules.min_pressure_rise
        warm = core[box][near].max() - core[box][around].mean() >= rules.min_core_warmth
        if closed and warm and rotation[box][near].max() >= threshold:
            found.append(
                CycloneCentre(
                    latitude, longitude, _storm_radius(grid, row, column, speed, rules.storm_wind)
                )
            )
    return found


def _pressure_minima(
    pressure: Values, grid: LatLonGrid, radius: float, max_latitude: float
) -> Iterator[tuple[int, int]]:
    """Return the rows and columns of pressure minima within ``radius`` degrees (a box), equatorward of the limit."""
    tall = 2 * int(radius / 180 * (grid.height - 1)) + 1
    wide = 2 * int(radius / 360 * grid.width) + 1
    least, most = (
        chosen(pressure, (tall, wide), mode=("nearest", "wrap"))
        for chosen in (ndimage.minimum_filter, ndimage.maximum_filter)
    )
    lows = (pressure == least) & (least < most) & (np.abs(grid.latitudes) <= max_latitude)[:, None]
    for row, column in np.argwhere(lows):
        yield int(row), int(column)


def _storm_radius(
    grid: LatLonGrid, row: int, column: int, speed: Values, storm_wind: float
) -> float:
    """Return the radius in degrees at which the mean wind on a ring, beyond its peak, falls to ``storm_wind``."""
    step = grid.spacing_km / _KM_PER_DEGREE / 2
    reach = max(10.0, 6 * step)
    box = np.ix_(*_box(grid, float(grid.latitudes[row]), float(grid.longitudes[column]), reach))
    rings = (
        (great_circle_km(grid.points[box], grid.points[row, column]) / _KM_PER_DEGREE / step)
        .astype(int)
        .ravel()
    )
    counts = np.bincount(rings)
    means = np.bincount(rings, speed[box].ravel()) / np.maximum(counts, 1)
    means = means[: int(reach / step)]
    peak = int(means.argmax())
    weaker = np.flatnonzero(means[peak:] < storm_wind)
    return float((peak + (weaker[0] if len(weaker) else len(means) - peak)) * step)


def _box(
    grid: LatLonGrid, latitude: float, longitude: float, reach: float
) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Return the rows and columns within ``reach`` degrees of latitude and longitude, periodic in longitude."""
    rows = np.flatnonzero(np.abs(grid.latitudes - latitude) <= reach)
    half = min(int(reach / 360 * grid.width), (grid.width - 1) // 2)
    middle = round(longitude / 360 * grid.width)
    return rows, np.arange(middle - half, middle + half + 1) % grid.width


def _largest_region(mask: Mask) -> Mask:
    regions, count = ndimage.label(mask, _EIGHT)
    if count == 0:
        return mask
    largest: Mask = regions == 1 + np.bincount(regions.ravel())[1:].argmax()
    return largest
