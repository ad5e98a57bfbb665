"""Physically plausible fields at one instant: 16 coupled channels with planted cyclones and rivers.

The wind follows from a random stream function whose kinetic energy falls as the wave number to the power -3, as
observed between about 500 and 3,000 km, where temperature behaves likewise (Nastrom and Gage, 1985,
doi:10.1175/1520-0469(1985)042<0950:ACOAWS>2.0.CO;2). Pressure and heights follow geostrophically from the stream
function (power -5), temperatures follow hydrostatically from the heights, with noise of power -3, and moisture follows
from temperature by the Clausius-Clapeyron relation. Moisture and rain vary on smaller scales (powers -2 and -1.2), and
eddies stir the moisture into filaments. A sample depends only on the seed and its index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trainers.workloads.segmentation.channels import CHANNELS
from trainers.workloads.segmentation.grid import EARTH_RADIUS_KM, LatLonGrid, Values
from trainers.workloads.segmentation.harmonics import (
    harmonic_degree,
    harmonic_synthesis,
    random_coefficients,
)
from trainers.workloads.segmentation.planet import (
    AIR_DENSITY,
    GRAVITY,
    METRES_PER_KELVIN,
    PlanetSurface,
    coriolis,
    distance_from_thermal_equator,
    mean_precipitation,
    mean_pressure,
    mean_temperatures,
    mean_wind,
    planet_surface,
    saturation_humidity,
)
from trainers.workloads.segmentation.weather import (
    AtmosphericRiver,
    TropicalCyclone,
    WeatherState,
    draw_atmospheric_river,
    draw_cyclone,
    plant_atmospheric_river,
    plant_cyclone,
)

MEAN_CYCLONES, MEAN_RIVERS = 1.2, 5.0

_WIND_SLOPE, _TEMPERATURE_SLOPE, _MOISTURE_SLOPE, _RAIN_SLOPE = -5.0, -3.0, -2.0, -1.2
_PEAK_WAVE = 7
_EDDY_WIND, _EDDY_WIND_ALOFT = (
    8.0,
    17.0,
)  # m/s, root mean square in the storm tracks at 850 and 200 hPa
_THICKNESS_LAYERS = np.log(1000 / 200) * METRES_PER_KELVIN
_LAYER_WEIGHTS = (
    0.35,
    0.40,
    0.25,
)  # weights of the low, middle and high temperatures in the mean from 1000 to 200 hPa
_LAYER_RESPONSE = (
    1.0,
    1.9,
    -0.44,
)  # responses to 1 K of that mean: their weighted sum is 1; the stratosphere cools
_BOTTOM_TURN = np.radians(20)  # friction turns the lowest wind towards low pressure
_STIRRING_STEPS, _STIRRING_SECONDS = 4, 12 * 3600.0


@dataclass(frozen=True)
class PlantedSample:
    """Fields ``(height, width, 16)`` float32, and the weather planted in them."""

    fields: NDArray[np.float32]
    cyclones: tuple[TropicalCyclone, ...]
    rivers: tuple[AtmosphericRiver, ...]


def make_planted_sample(
    grid: LatLonGrid,
    seed: int,
    index: int,
    mean_cyclones: float = MEAN_CYCLONES,
    mean_rivers: float = MEAN_RIVERS,
) -> PlantedSample:
    """Return sample ``index`` of the data set with this ``seed``; event counts are Poisson with the given means."""
    generator = np.random.default_rng([seed, index])
    surface = planet_surface(grid)
    thermal_equator = 10 * np.sin(2 * np.pi * generator.random())  # degrees north: the season
    counts = generator.poisson((mean_cyclones, mean_rivers))
    cyclones = [
        draw_cyclone(generator, thermal_equator, surface.land, grid) for _ in range(counts[0])
    ]
    rivers = [draw_atmospheric_river(generator) for _ in range(counts[1])]
    noise = _noise(generator, grid)
    state = _undisturbed(grid, thermal_equator, noise)
    for river in rivers:
        plant_atmospheric_river(state, river, grid)
    for cyclone in cyclones:
        plant_cyclone(state, cyclone, grid)
    channels = _channels(state, surface, grid, noise)
    fields = np.stack(
        [channels[name] for name in CHANNELS], -1, dtype=np.float32, casting="same_kind"
    )
    return PlantedSample(fields, tuple(cyclones), tuple(rivers))


@dataclass(frozen=True)
class _Noise:
    """Random fields of variance 1, ``(height, width)`` each."""

    stream: Values
    aloft: Values
    temperature: Values
    moisture: Values
    humidity: Values
    rain: Values


def _noise(generator: np.random.Generator, grid: LatLonGrid) -> _Noise:
    slopes = (
        _WIND_SLOPE,
        _WIND_SLOPE,
        _TEMPERATURE_SLOPE,
        _MOISTURE_SLOPE,
        _MOISTURE_SLOPE,
        _RAIN_SLOPE,
    )
    coefficients = random_coefficients(generator, slopes, harmonic_degree(grid.height), _PEAK_WAVE)
    return _Noise(*harmonic_synthesis(coefficients, grid.height, grid.width))


def _undisturbed(grid: LatLonGrid, thermal_equator: float, noise: _Noise) -> WeatherState:
    """Return the state without planted weather."""
    latitudes = grid.latitudes
    low, middle, high = (mean[:, None] for mean in mean_temperatures(latitudes, thermal_equator))
    storm_track = 0.25 + 0.75 * np.exp(-(((np.abs(latitudes) - 50) / 17) ** 2))[:, None]
    metres_per_wave = (
        EARTH_RADIUS_KM * 1e3 / 9
    )  # ratio of the root mean squares of a stream function and its wind
    stream = _EDDY_WIND * metres_per_wave * storm_track * noise.stream
    aloft = (
        _EDDY_WIND_ALOFT * metres_per_wave * storm_track * (0.8 * noise.stream + 0.6 * noise.aloft)
    )
    turning = coriolis(grid)
    eastward, northward = _rotational_wind(stream, grid)
    pressure = mean_pressure(latitudes)[:, None] + AIR_DENSITY * turning * stream
    thickness = turning * aloft / GRAVITY - turning * stream / GRAVITY
    warmth = thickness / _THICKNESS_LAYERS
    low, middle, high = (
        mean + response * warmth
        for mean, response in zip((low, middle, high), _LAYER_RESPONSE, strict=True)
    )
    extratropics = distance_from_thermal_equator(latitudes, thermal_equator)[:, None]
    low, middle = (
        layer + part * extratropics * noise.temperature
        for layer, part in ((low, 1.5), (middle, 1.0))
    )
    dry = 0.12 * np.exp(-(((np.abs(latitudes) - 27) / 9) ** 2))[:, None]
    humidity = np.clip(0.80 - dry + 0.06 * noise.humidity, 0.2, 0.97)
    moisture, origins = _stirred(noise.moisture, eastward, northward, grid)
    polewards = np.abs(latitudes)[:, None] - np.abs(
        origins
    )  # degrees: air from the equator is moist
    rising = 1 + 0.2 * np.exp(-(((latitudes - thermal_equator) / 7) ** 2))[:, None]
    column = rising * np.exp(0.22 * moisture + 0.035 * np.clip(polewards, -12, 12))
    showers = np.exp(
        1.3 * noise.rain + 0.6 * moisture + 0.05 * polewards - 1.0 - turning * stream / 2000
    )
    rain = np.maximum(mean_precipitation(latitudes, thermal_equator)[:, None] * (showers - 0.15), 0)
    eastward = mean_wind(latitudes)[:, None] + eastward
    return WeatherState(eastward, northward, pressure, low, middle, high, humidity, column, rain)


def _rotational_wind(stream: Values, grid: LatLonGrid) -> tuple[Values, Values]:
    """Return the eastward and northward wind (m/s) of a stream function (m2/s)."""
    metres = EARTH_RADIUS_KM * 1e3
    north_step, east_step = np.radians(180 / (grid.height - 1)), np.radians(360 / grid.width)
    eastward = -np.gradient(stream, north_step, axis=0) / metres
    northward = (np.roll(stream, -1, 1) - np.roll(stream, 1, 1)) / (
        2 * east_step * metres * grid.cosines
    )
    return eastward, northward


def _stirred(
    tracer: Values, eastward: Values, northward: Values, grid: LatLonGrid
) -> tuple[Values, Values]:
    """Return a tracer after two days in the eddies' constant wind, and the latitude of each parcel's origin."""
    rows, columns = np.meshgrid(np.arange(grid.height), np.arange(grid.width), indexing="ij")
    metres = EARTH_RADIUS_KM * 1e3
    down = np.degrees(_STIRRING_SECONDS * northward / metres) / 180 * (grid.height - 1)
    along = (
        np.degrees(_STIRRING_SECONDS * eastward / (metres * np.maximum(grid.cosines, 0.2)))
        / 360
        * grid.width
    )
    place = np.stack([rows, columns]).astype(np.float64)
    for _ in range(_STIRRING_STEPS):
        wind = [_sampled(values, place) for values in (down, along)]
        place -= wind
        place[0] = np.clip(place[0], 0, grid.height - 1)
    return _sampled(tracer, place), place[0] / (grid.height - 1) * 180 - 90


def _sampled(values: Values, place: Values) -> Values:
    """Interpolate values at fractional rows and columns, ``(2, height, width)``; bilinear, periodic in the columns."""
    sampled: Values = ndimage.map_coordinates(values, place, order=1, mode="grid-wrap")
    return sampled


def _channels(
    state: WeatherState, surface: PlanetSurface, grid: LatLonGrid, noise: _Noise
) -> dict[str, Values]:
    land = surface.land
    at_reference = state.low - 0.0065 * surface.elevation + 1.5 * land * noise.temperature
    surface_pressure = state.pressure * np.exp(-surface.elevation / (METRES_PER_KELVIN * state.low))
    saturated = saturation_humidity(at_reference, surface_pressure)
    humidity = saturated * state.humidity * (1 - 0.2 * land)
    vapour, most = (
        2700 * humidity * state.column,
        3700 * saturated,
    )  # kg/m2: air density times 2.3 and 3 km
    turn = _BOTTOM_TURN * np.sign(grid.latitudes)[:, None]
    slowed = 0.75 - 0.25 * land
    low_heights = METRES_PER_KELVIN * state.low * np.log(state.pressure / 1e5)
    weights = zip(_LAYER_WEIGHTS, (state.low, state.middle, state.high), strict=True)
    sea = np.maximum(state.low + 0.8, 271.35)
    return {
        "TMQ": vapour / (1 + (vapour / most) ** 4) ** 0.25,
        "U850": state.eastward,
        "V850": state.northward,
        "UBOT": slowed * (np.cos(turn) * state.eastward - np.sin(turn) * state.northward),
        "VBOT": slowed * (np.sin(turn) * state.eastward + np.cos(turn) * state.northward),
        "QREFHT": humidity,
        "PS": surface_pressure,
        "PSL": state.pressure,
        "T200": state.high,
        "T500": state.middle,
        "PRECT": state.precipitation,
        "TS": (1 - land) * sea + land * (at_reference + 1.5 + 2 * noise.temperature),
        "TREFHT": at_reference,
        "Z1000": low_heights,
        "Z200": low_heights + _THICKNESS_LAYERS * sum(weight * layer for weight, layer in weights),
        "ZBOT": METRES_PER_KELVIN
        * at_reference
        * 0.0074,  # the middle of CAM5's lowest layer, above ground
    }
