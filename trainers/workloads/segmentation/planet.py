"""The features that all samples share: continents and mountains, and the mean state at each latitude.

The planet is fictitious and the same for every data set; its zonal means roughly follow observations. Units are
degrees, Pa, K, m and m/s.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from trainers.workloads.segmentation.grid import EARTH_RADIUS_KM, LatLonGrid, Values
from trainers.workloads.segmentation.harmonics import (
    harmonic_degree,
    harmonic_synthesis,
    random_coefficients,
)

GRAVITY, GAS_CONSTANT, ROTATION = 9.80616, 287.04, 7.292e-5
AIR_DENSITY = 1.2
METRES_PER_KELVIN = GAS_CONSTANT / GRAVITY
_CONTINENTS_SEED, _CONTINENTS_DEGREE, _LAND_THRESHOLD = 1810, 24, 0.55


@dataclass(frozen=True)
class PlanetSurface:
    """The share of land (0 to 1) and the height of the surface (m), ``(height, width)`` each."""

    land: Values
    elevation: Values


@functools.lru_cache(maxsize=4)
def planet_surface(grid: LatLonGrid) -> PlanetSurface:
    """Return the planet's continents, about 30 % of its area, with hills and a few mountains."""
    generator = np.random.default_rng(_CONTINENTS_SEED)
    degree = min(_CONTINENTS_DEGREE, harmonic_degree(grid.height))
    shape, hills = harmonic_synthesis(
        random_coefficients(generator, (-2.5, -2.0), degree, 3), grid.height, grid.width
    )
    above = shape - _LAND_THRESHOLD
    land = 1 / (1 + np.exp(-above / 0.06))
    return PlanetSurface(land, land * np.maximum(above, 0) * 700 * np.exp(0.8 * hills))


def coriolis(grid: LatLonGrid) -> Values:
    """Return the Coriolis parameter (1/s), ``(height, 1)``, negative in the south."""
    return 2 * ROTATION * np.sin(np.radians(grid.latitudes))[:, None]


def distance_from_thermal_equator(latitudes: Values, thermal_equator: float) -> Values:
    """Return the distance from the thermal equator: the sine of the shifted latitude, about 1 at the poles."""
    return np.minimum(
        np.abs(np.sin(np.radians(latitudes - thermal_equator * np.cos(np.radians(latitudes))))), 1
    )


def mean_temperatures(latitudes: Values, thermal_equator: float) -> tuple[Values, Values, Values]:
    """Return the zonal mean temperatures (K) near the surface, at 500 hPa and at 200 hPa."""
    distance = distance_from_thermal_equator(latitudes, thermal_equator)
    return 300.5 - 55 * distance**2.4, 268.5 - 32 * distance**2.2, 218.0 + 8 * distance**2


def mean_wind(latitudes: Values) -> Values:
    """Return the zonal mean eastward wind at 850 hPa (m/s): trades, westerlies (stronger in the south), polar winds."""
    away = np.abs(latitudes)
    westerlies = np.where(latitudes < 0, 10.0, 7.0) * np.exp(-(((away - 46) / 14) ** 2))
    return (
        westerlies
        - 7.0 * np.exp(-(((away - 13) / 8) ** 2))
        - 1.5 * np.exp(-(((away - 75) / 8) ** 2))
    )


def mean_pressure(latitudes: Values) -> Values:
    """Return the zonal mean sea-level pressure (Pa), in geostrophic balance with three quarters of the mean wind."""
    steps = np.radians(np.diff(latitudes))
    turning = 2 * ROTATION * np.sin(np.radians(latitudes))
    slope = (
        -AIR_DENSITY * turning * EARTH_RADIUS_KM * 1e3 * 0.75 * mean_wind(latitudes)
    )  # Pa per radian
    pressure = np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2 * steps)])
    weights = np.cos(np.radians(latitudes))
    pressure += 101_100 - (pressure * weights).sum() / weights.sum()
    return pressure


def mean_precipitation(latitudes: Values, thermal_equator: float) -> Values:
    """Return the zonal mean precipitation (m/s): the convergence zone, dry subtropics, storm tracks."""
    away = np.abs(latitudes)
    convergence, tracks = (
        np.exp(-(((latitudes - thermal_equator) / 6) ** 2)),
        np.exp(-(((away - 47) / 14) ** 2)),
    )
    metres: Values = (0.4 + 8 * convergence + 3 * tracks) * 1e-3 / 86400  # from mm a day
    return metres


def saturation_humidity(temperature: Values, pressure: Values) -> Values:
    """Return the saturation specific humidity (kg/kg): Clausius-Clapeyron after Bolton (1980, eq. 10); K and Pa."""
    celsius = temperature - 273.15
    vapour = 611.2 * np.exp(17.67 * celsius / (celsius + 243.5))
    return 0.622 * vapour / (pressure - 0.378 * vapour)
