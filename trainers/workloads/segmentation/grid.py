"""The latitude-longitude grid of CAM5's finite-volume core, which includes the poles and is periodic in longitude."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EARTH_RADIUS_KM = 6371.22  # as in CAM5
Values = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class LatLonGrid:
    """A grid of ``height`` latitudes from the South to the North Pole and ``width`` longitudes eastward from 0."""

    height: int
    width: int

    @functools.cached_property
    def latitudes(self) -> Values:
        """The latitudes in degrees north, ``(height,)``."""
        return np.linspace(-90, 90, self.height, dtype=np.float64)

    @functools.cached_property
    def longitudes(self) -> Values:
        """The longitudes in degrees east, ``(width,)``."""
        return np.arange(self.width) * (360 / self.width)

    @functools.cached_property
    def points(self) -> Values:
        """Each grid point's position on the unit sphere, ``(height, width, 3)``."""
        return unit_vectors_on_sphere(self.latitudes[:, None], self.longitudes[None, :])

    @functools.cached_property
    def cell_areas_km2(self) -> Values:
        """The area of a cell at each latitude, ``(height,)``; together, the cells cover the sphere."""
        half = 90 / (self.height - 1)
        edges = np.sin(np.radians(np.clip([self.latitudes - half, self.latitudes + half], -90, 90)))
        areas: Values = EARTH_RADIUS_KM**2 * (edges[1] - edges[0]) * (2 * np.pi / self.width)
        return areas

    @property
    def spacing_km(self) -> float:
        """The coarser of the latitude and longitude spacings at the equator."""
        return float(np.radians(max(180 / (self.height - 1), 360 / self.width)) * EARTH_RADIUS_KM)

    @functools.cached_property
    def cosines(self) -> Values:
        """The cosine of the latitude, ``(height, 1)``, taken a quarter cell away from the poles to avoid 0."""
        return np.cos(np.radians(np.minimum(np.abs(self.latitudes), 90 - 45 / (self.height - 1))))[
            :, None
        ]

    def vorticity(self, eastward: NDArray[Any], northward: NDArray[Any]) -> Values:
        """Return the relative vorticity (1/s) of a wind (m/s), both ``(height, width)``, by centred differences."""
        metres = EARTH_RADIUS_KM * 1e3
        east_step, north_step = np.radians(360 / self.width), np.radians(180 / (self.height - 1))
        along = (np.roll(northward, -1, 1) - np.roll(northward, 1, 1)) / (2 * east_step)
        across = np.gradient(eastward * self.cosines, north_step, axis=0)
        curl: Values = (along - across) / (metres * self.cosines)
        return curl


def unit_vectors_on_sphere(latitudes: Any, longitudes: Any) -> Values:
    """Return the unit vectors of positions in degrees; the arguments broadcast, and the last axis holds each vector."""
    phi, lam = np.broadcast_arrays(np.radians(latitudes), np.radians(longitudes))
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)


def great_circle_km(first: Values, second: Values) -> Values:
    """Return the great-circle distance between unit vectors (last axis 3), even if they are close or opposite."""
    chord = np.linalg.norm(first - second, axis=-1)
    distances: Values = 2 * EARTH_RADIUS_KM * np.arcsin(np.minimum(chord / 2, 1))
    return distances


@functools.lru_cache(maxsize=8)
def lat_lon_grid(height: int, width: int) -> LatLonGrid:
    """Return the shared grid object of this shape, whose points are computed only once."""
    return LatLonGrid(height, width)
