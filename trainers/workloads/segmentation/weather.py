"""Weather events planted in the fields: tropical cyclones and atmospheric rivers, with their effects on the air."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from trainers.workloads.segmentation.grid import (
    EARTH_RADIUS_KM,
    LatLonGrid,
    Values,
    great_circle_km,
    unit_vectors_on_sphere,
)
from trainers.workloads.segmentation.planet import AIR_DENSITY, ROTATION

_CELLS_OF_EYE = 1.0  # minimum number of cells from a storm's centre to its wind maximum
_CELLS_OF_RIVER = 0.8


@dataclass(frozen=True)
class TropicalCyclone:
    """A tropical cyclone.

    Units are degrees, Pa and km; the shape parameter is B of Holland (1980,
    doi:10.1175/1520-0493(1980)108<1212:AAMOTW>2.0.CO;2).
    """

    latitude: float
    longitude: float
    pressure_deficit: float
    radius_of_maximum_wind: float
    shape: float
    warm_core: float


@dataclass(frozen=True)
class AtmosphericRiver:
    """An atmospheric river, whose axis ``(points, 2)`` gives latitude and longitude from its tropical to its polar end.

    Angles are in degrees; jet: the maximum wind along the axis (m/s); half_width: the distance at which the wind has
    fallen to 1/e (km).
    """

    axis: Values
    jet: float
    half_width: float

    @property
    def length_km(self) -> float:
        """The length of the river along its axis."""
        points = unit_vectors_on_sphere(self.axis[:, 0], self.axis[:, 1])
        return float(great_circle_km(points[1:], points[:-1]).sum())


@dataclass
class WeatherState:
    """The state of the air before conversion to channels, ``(height, width)`` each; planted events are added to it.

    eastward, northward: wind at 850 hPa (m/s); pressure: at sea level (Pa); low, middle, high: temperature near
    the surface, at 500 and at 200 hPa (K); humidity: relative, near the surface; column: factor on the
    precipitable water; precipitation (m/s).
    """

    eastward: Values
    northward: Values
    pressure: Values
    low: Values
    middle: Values
    high: Values
    humidity: Values
    column: Values
    precipitation: Values


def draw_cyclone(
    generator: np.random.Generator, thermal_equator: float, land: Values, grid: LatLonGrid
) -> TropicalCyclone:
    """Draw a cyclone over the sea, 9 to 28 degrees from the equator, more often in the warmer hemisphere."""
    summer = 1.0 if thermal_equator >= 0 else -1.0
    draws = generator.random((16, 3))
    numbers = generator.random(4)
    for away, longitude, side in draws:
        latitude = (9 + 19 * away) * (
            summer if side < 0.5 + 0.04 * abs(thermal_equator) else -summer
        )
        row = round((latitude + 90) / 180 * (grid.height - 1))
        if land[row, int(longitude * grid.width)] < 0.3:
            break
    resolved = _CELLS_OF_EYE * grid.spacing_km
    return TropicalCyclone(
        latitude,
        360 * longitude,
        2500 + 4500 * numbers[0],
        max(60 + 80 * numbers[1], resolved),
        1.3 + 0.5 * numbers[2],
        4 + 4 * numbers[3],
    )


def draw_atmospheric_river(generator: np.random.Generator) -> AtmosphericRiver:
    """Draw a river, 2,500 to 5,000 km long, that leaves the subtropics eastward and bends towards the pole."""
    start, length, bend, heading, jet, half_width, longitude, side = generator.random(8)
    hemisphere = 1.0 if side < 0.5 else -1.0
    arcs = np.linspace(0, 1, 48)
    directions = np.radians(10 + 20 * heading + (15 + 30 * bend) * arcs)  # from east to the pole
    step = np.degrees((2500 + 2500 * length) / EARTH_RADIUS_KM) / len(arcs)
    latitudes = 21 + 6 * start + np.concatenate([[0], np.cumsum(step * np.sin(directions))[:-1]])
    latitudes = np.minimum(latitudes, 62)
    longitudes = np.concatenate(
        [[0], np.cumsum(step * np.cos(directions) / np.cos(np.radians(latitudes)))[:-1]]
    )
    axis = np.stack([hemisphere * latitudes, (360 * longitude + longitudes) % 360], 1)
    return AtmosphericRiver(axis, 20 + 10 * jet, 170 + 90 * half_width)


def plant_cyclone(state: WeatherState, cyclone: TropicalCyclone, grid: LatLonGrid) -> None:
    """Add a vortex of low pressure, with a ring of wind, a warm core, moist air and rain.

    Pressure and wind follow Holland (eqs. 1 and 5, gradient wind) and fade out beyond six radii of maximum wind.
    """
    centre = unit_vectors_on_sphere(cyclone.latitude, cyclone.longitude)
    size, deficit, shape = cyclone.radius_of_maximum_wind, cyclone.pressure_deficit, cyclone.shape
    near = _near(grid, centre, 14 * size)
    points = grid.points[near]
    radius = np.maximum(great_circle_km(points, centre), 1.0)
    fade = np.exp(-((radius / (6 * size)) ** 2))
    core = np.exp(-((size / radius) ** shape))
    turn = ROTATION * np.abs(np.sin(np.radians(cyclone.latitude))) * radius * 1e3  # r f / 2
    speed = (
        np.sqrt(shape / AIR_DENSITY * (size / radius) ** shape * deficit * core + turn**2) - turn
    )
    east, north = _around(points, centre)
    sign = 1.0 if cyclone.latitude > 0 else -1.0
    state.eastward[near] += sign * speed * fade * east
    state.northward[near] += sign * speed * fade * north
    state.pressure[near] -= deficit * (1 - core) * fade
    warmth = cyclone.warm_core * np.exp(-((radius / (1.8 * size)) ** 2))
    state.middle[near] += warmth
    state.high[near] += 0.8 * warmth
    inner = np.exp(-((radius / (2.2 * size)) ** 2))
    bands = _spiral_bands(east, north, radius / size, sign)
    state.humidity[near] += (0.97 - state.humidity[near]) * inner
    state.column[near] *= 1 + 0.55 * inner * bands
    ring = np.exp(-(((radius - 0.8 * size) / (0.9 * size)) ** 2))
    state.precipitation[near] += 2.2e-6 * (deficit / 5000) * (0.7 * ring + 0.3 * inner) * bands


def plant_atmospheric_river(state: WeatherState, river: AtmosphericRiver, grid: LatLonGrid) -> None:
    """Add a band of moist, warm air with a jet along it and the pressure difference that balances the jet."""
    axis = unit_vectors_on_sphere(river.axis[:, 0], river.axis[:, 1])
    near = _near(grid, axis[len(axis) // 2], river.length_km / 2 + 2500)
    points = grid.points[near]
    nearest = (points.astype(np.float32) @ axis.T.astype(np.float32)).argmax(1)
    tangents = np.gradient(axis, axis=0)
    tangents /= np.linalg.norm(tangents, axis=1, keepdims=True)
    distance = great_circle_km(points, axis[nearest])
    left = EARTH_RADIUS_KM * (points * np.cross(axis, tangents)[nearest]).sum(
        1
    )  # km to the left of the axis
    along = nearest / (len(axis) - 1)
    ends = np.sin(np.pi * (0.08 + 0.84 * along)) ** 0.6
    width = max(river.half_width, _CELLS_OF_RIVER * grid.spacing_km)
    band = ends * np.exp(-((distance / width) ** 2))
    broad = ends * np.exp(-((distance / (1.35 * width)) ** 2))
    east, north = _components(points, tangents[nearest])
    state.eastward[near] += river.jet * broad * east
    state.northward[near] += river.jet * broad * north
    sheltered = ends * np.exp(-((distance / 900) ** 2))
    across = (
        0.5e3 * np.sqrt(np.pi) * 1.35 * width * erf(left / (1.35 * width))
    )  # m: the integral of the jet's profile across the axis
    state.pressure[near] -= (
        AIR_DENSITY * 2 * ROTATION * points[:, 2] * river.jet * across * sheltered
    )
    state.low[near] += (3.0 + 4.0 * along) * broad  # subtropical air
    state.middle[near] += 2.0 * broad
    state.humidity[near] += (0.97 - state.humidity[near]) * band
    state.column[near] *= 1 + 0.8 * band
    state.precipitation[near] += 3.0e-7 * band**2 * (0.3 + along)


def _near(grid: LatLonGrid, centre: Values, reach_km: float) -> NDArray[np.bool_]:
    """Return a mask of the grid points within a distance of a unit vector, ``(height, width)``."""
    near: NDArray[np.bool_] = grid.points @ centre > np.cos(min(reach_km / EARTH_RADIUS_KM, np.pi))
    return near


def _components(points: Values, directions: Values) -> tuple[Values, Values]:
    """Return the eastward and northward components of vectors (last axis 3) at points on the sphere."""
    flat = np.maximum(np.hypot(points[..., 0], points[..., 1]), 1e-9)
    east = (points[..., 0] * directions[..., 1] - points[..., 1] * directions[..., 0]) / flat
    north = (directions[..., 2] - points[..., 2] * (points * directions).sum(-1)) / flat
    return east, north


def _around(points: Values, centre: Values) -> tuple[Values, Values]:
    """Return eastward and northward components of the anticlockwise direction around ``centre``, seen from above."""
    directions = np.cross(centre, points)
    directions /= np.maximum(np.linalg.norm(directions, axis=-1, keepdims=True), 1e-9)
    return _components(points, directions)


def _spiral_bands(east: Values, north: Values, radii: Values, sign: float) -> Values:
    """Return a factor of 0.6 to 1.4 that forms two arms spiralling inwards with the rotation, and is 1 in the eye."""
    arms = np.cos(2 * np.arctan2(north, east) + sign * 2.5 * np.log(np.maximum(radii, 0.3)))
    bands: Values = 1 + 0.4 * arms * np.clip(radii - 0.3, 0, 1)
    return bands
