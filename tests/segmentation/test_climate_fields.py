"""The generated fields: the sphere, the spectra, the physics that couples the channels."""

import numpy as np
import pytest
from scipy.special import sph_harm_y

from trainers.workloads.segmentation import fields as fields_module
from trainers.workloads.segmentation.channels import CHANNELS
from trainers.workloads.segmentation.fields import make_planted_sample
from trainers.workloads.segmentation.grid import (
    EARTH_RADIUS_KM,
    LatLonGrid,
    great_circle_km,
    lat_lon_grid,
    unit_vectors_on_sphere,
)
from trainers.workloads.segmentation.harmonics import harmonic_synthesis, random_coefficients
from trainers.workloads.segmentation.planet import planet_surface, saturation_humidity
from trainers.workloads.segmentation.weather import (
    AtmosphericRiver,
    TropicalCyclone,
    WeatherState,
    plant_atmospheric_river,
    plant_cyclone,
)

pytestmark = pytest.mark.medium

GRID = lat_lon_grid(96, 144)


def channel(sample, name):
    return sample.fields[..., CHANNELS.index(name)].astype(np.float64)


def calm(grid):
    """Air at rest, 80 % humid, everywhere alike."""

    def even(value):
        return np.full((grid.height, grid.width), float(value))

    return WeatherState(
        even(0),
        even(0),
        even(101_000),
        even(290),
        even(260),
        even(220),
        even(0.8),
        even(1),
        even(0),
    )


def spectral_variances(field, degrees):
    """Variance at each total wave number of a field on a regular grid, by projection on scipy's harmonics."""
    height, width = field.shape
    grid = LatLonGrid(height, width)
    waves = np.fft.rfft(field * grid.cell_areas_km2[:, None] / EARTH_RADIUS_KM**2, axis=1)
    colatitude = np.radians(90 - grid.latitudes)

    def squared(degree, order):
        return (2 if order else 1) * abs(
            sph_harm_y(degree, order, colatitude, 0.0).real @ waves[:, order]
        ) ** 2

    return np.array(
        [sum(squared(degree, order) for order in range(degree + 1)) for degree in degrees]
    )


# --- the sphere ---


def test_distances_on_the_sphere_are_those_of_the_spherical_law_of_cosines():
    generator = np.random.default_rng(0)
    latitudes, longitudes = (
        generator.uniform(-90, 90, (2, 200)),
        generator.uniform(0, 360, (2, 200)),
    )
    phi, difference = np.radians(latitudes), np.radians(longitudes[1] - longitudes[0])
    cosine = np.sin(phi[0]) * np.sin(phi[1]) + np.cos(phi[0]) * np.cos(phi[1]) * np.cos(difference)
    found = great_circle_km(
        unit_vectors_on_sphere(latitudes[0], longitudes[0]),
        unit_vectors_on_sphere(latitudes[1], longitudes[1]),
    )
    np.testing.assert_allclose(found, EARTH_RADIUS_KM * np.arccos(cosine), rtol=1e-6)
    degree = great_circle_km(unit_vectors_on_sphere(0, 359.5), unit_vectors_on_sphere(0, 0.5))
    assert degree == pytest.approx(111.2, abs=0.05)
    assert great_circle_km(
        unit_vectors_on_sphere(60, 0), unit_vectors_on_sphere(60, 1)
    ) == pytest.approx(degree / 2, rel=1e-4)
    assert great_circle_km(
        unit_vectors_on_sphere(90, 0), unit_vectors_on_sphere(-90, 123)
    ) == pytest.approx(np.pi * EARTH_RADIUS_KM)


def test_the_grid_is_that_of_cam5_and_its_cells_make_up_the_sphere():
    grid = LatLonGrid(768, 1152)
    assert (grid.latitudes[0], grid.latitudes[-1], grid.longitudes[0]) == (-90, 90, 0)
    assert grid.latitudes[1] - grid.latitudes[0] == pytest.approx(0.2347, abs=1e-4)
    assert grid.longitudes[1] == 0.3125
    assert grid.cell_areas_km2.sum() * 1152 == pytest.approx(4 * np.pi * EARTH_RADIUS_KM**2)


def test_vorticity_of_solid_rotation_is_twice_its_rate_times_the_sine_of_the_latitude():
    grid = lat_lon_grid(180, 120)
    rate = 1e-5
    wind = (
        rate
        * EARTH_RADIUS_KM
        * 1e3
        * np.cos(np.radians(grid.latitudes))[:, None]
        * np.ones((1, 120))
    )
    inner = slice(2, -2)
    expected = 2 * rate * np.sin(np.radians(grid.latitudes))[:, None] * np.ones((1, 120))
    np.testing.assert_allclose(
        grid.vorticity(wind, np.zeros_like(wind))[inner], expected[inner], atol=2e-8
    )


# --- the spectra ---


def test_synthesis_is_the_sum_of_spherical_harmonics():
    generator = np.random.default_rng(1)
    coefficients = random_coefficients(generator, (-2.0,), 6, 3)
    colatitude = np.radians(90 - np.linspace(-90, 90, 20))[:, None]
    longitude = (np.arange(30) * 2 * np.pi / 30)[None, :]
    expected = np.zeros((20, 30))
    for degree in range(1, 7):
        for order in range(degree + 1):
            wave = coefficients[0, degree, order] * sph_harm_y(degree, order, colatitude, longitude)
            expected += (2 if order else 1) * wave.real
    np.testing.assert_allclose(harmonic_synthesis(coefficients, 20, 30)[0], expected, atol=1e-5)


@pytest.mark.parametrize("slope", [-5.0, -2.0, -1.2])
def test_random_fields_have_variance_one_and_the_slope_that_was_asked_for(slope):
    degrees = np.array([8, 11, 16, 22, 30, 40])
    coefficients = random_coefficients(np.random.default_rng(2), (slope,) * 30, 63, 7)
    fields = harmonic_synthesis(coefficients, 96, 144)
    weights = np.repeat(GRID.cell_areas_km2[:, None], 144, 1)
    assert np.average((fields**2).mean(0), weights=weights) == pytest.approx(1, abs=0.15)
    variances = sum(spectral_variances(field, degrees) for field in fields[:8])
    assert np.polyfit(np.log(degrees), np.log(variances), 1)[0] == pytest.approx(slope, abs=0.35)


def test_a_finer_grid_shows_the_same_large_waves():
    coarse = harmonic_synthesis(
        random_coefficients(np.random.default_rng(3), (-5.0,), 20, 7), 31, 60
    )[0]
    finer = random_coefficients(np.random.default_rng(3), (-5.0,), 40, 7)
    finer[:, 21:] = 0
    fine = harmonic_synthesis(finer, 61, 120)[0, ::2, ::2]
    assert np.corrcoef(coarse.ravel(), fine.ravel())[0, 1] > 0.99999


def test_kinetic_energy_falls_as_the_cube_of_the_wave_number_and_rain_is_flatter():
    degrees, grid = np.arange(10, 36), lat_lon_grid(192, 288)
    samples = [
        make_planted_sample(grid, 47, index, mean_cyclones=0, mean_rivers=0) for index in range(6)
    ]
    slopes = {}
    for name in ("V850", "T500", "Z200", "TMQ", "PRECT"):
        fields = [channel(sample, name) for sample in samples]
        variances = sum(
            spectral_variances(field - field.mean(1, keepdims=True), degrees) for field in fields
        )
        slopes[name] = np.polyfit(np.log(degrees), np.log(variances), 1)[0]
    assert slopes["V850"] == pytest.approx(-3, abs=0.5)
    # the storm tracks, in which the eddies live, steepen the slopes that were asked for by 0.3 (measured)
    assert slopes["V850"] == pytest.approx(-3.2, abs=0.4)
    assert slopes["Z200"] == pytest.approx(-4.5, abs=0.5) and slopes["T500"] == pytest.approx(
        -4.5, abs=0.5
    )
    assert slopes["TMQ"] == pytest.approx(-2.1, abs=0.4) and slopes["PRECT"] == pytest.approx(
        -0.6, abs=0.4
    )


# --- the physics ---


def test_the_channels_lie_in_the_range_of_the_atmosphere():
    ranges = {
        "TMQ": (0, 100),
        "U850": (-80, 80),
        "V850": (-80, 80),
        "UBOT": (-70, 70),
        "VBOT": (-70, 70),
        "QREFHT": (0, 0.03),
        "PS": (5e4, 1.06e5),
        "PSL": (9e4, 1.06e5),
        "T200": (195, 240),
        "T500": (220, 285),
        "PRECT": (0, 1e-5),
        "TS": (220, 320),
        "TREFHT": (215, 315),
        "Z1000": (-900, 450),
        "Z200": (1e4, 1.35e4),
        "ZBOT": (40, 75),
    }
    for index in range(10):
        sample = make_planted_sample(GRID, 5, index)
        assert sample.fields.dtype == np.float32 and sample.fields.shape == (96, 144, 16)
        for name, (low, high) in ranges.items():
            values = channel(sample, name)
            assert low <= values.min() and values.max() <= high, name
        saturated = saturation_humidity(channel(sample, "TREFHT"), channel(sample, "PS"))
        assert (channel(sample, "QREFHT") <= saturated).all()


def test_the_wind_is_geostrophic_in_the_middle_latitudes():
    """u = -(1 / rho f) dp/dy and v = (1 / rho f) dp/dx, of the deviations from the zonal mean."""
    metres, rows = EARTH_RADIUS_KM * 1e3, np.abs(np.abs(GRID.latitudes) - 50) < 15
    turning = 2 * 7.292e-5 * np.sin(np.radians(GRID.latitudes))[:, None]
    for index in range(3):
        sample = make_planted_sample(GRID, 6, index, mean_cyclones=0, mean_rivers=0)
        pressure = channel(sample, "PSL")
        east = np.gradient(pressure, np.radians(2.5), axis=1)[:, 1:-1] / (metres * GRID.cosines)
        northward = (east / (1.2 * turning))[rows]
        assert (
            np.corrcoef(northward.ravel(), channel(sample, "V850")[rows, 1:-1].ravel())[0, 1] > 0.99
        )
        assert northward.std() == pytest.approx(channel(sample, "V850")[rows].std(), rel=0.05)
        north = -np.gradient(pressure, np.radians(180 / 95), axis=0) / metres / (1.2 * turning)
        assert np.corrcoef(north[rows].ravel(), channel(sample, "U850")[rows].ravel())[0, 1] > 0.9


def test_thickness_follows_the_layer_temperature():
    """The hypsometric equation: Z200 - Z1000 = R T / g ln 5, T a mean over the layer."""
    sample = make_planted_sample(GRID, 7, 0)
    thickness = channel(sample, "Z200") - channel(sample, "Z1000")
    layer = thickness * 9.80616 / (287.04 * np.log(5))
    assert ((layer > channel(sample, "T200")) & (layer < channel(sample, "T500") + 25)).all()
    assert np.corrcoef(layer.ravel(), channel(sample, "T500").ravel())[0, 1] > 0.99
    heights = 287.04 / 9.80616 * channel(sample, "TREFHT") * np.log(channel(sample, "PSL") / 1e5)
    sea = planet_surface(GRID).land < 0.01
    np.testing.assert_allclose(channel(sample, "Z1000")[sea], heights[sea], rtol=0.02, atol=1)


def test_saturation_humidity_is_that_of_the_tables():
    # Smithsonian tables: 6.112 hPa at 0 C, 23.37 hPa at 20 C, 42.43 hPa at 30 C
    for kelvin, vapour in ((273.15, 611.2), (293.15, 2337), (303.15, 4243)):
        assert saturation_humidity(kelvin, 1e5) == pytest.approx(
            0.622 * vapour / (1e5 - 0.378 * vapour), rel=0.003
        )


def test_fields_are_continuous_across_the_date_line():
    for name in ("U850", "PSL", "T500", "TMQ"):
        values = channel(make_planted_sample(GRID, 8, 0), name)
        seam = np.abs(values[:, 0] - values[:, -1]).mean()
        inside = np.abs(np.diff(values, axis=1)).mean(0)
        assert inside.min() / 2 < seam < 2 * inside.max(), name


@pytest.mark.parametrize("latitude", [18.0, -18.0])
@pytest.mark.parametrize("shape", [(96, 144), (384, 576)])
def test_a_cyclone_turns_cyclonically_around_a_warm_low_with_a_ring_of_wind(latitude, shape):
    grid, cyclone = (
        lat_lon_grid(*shape),
        TropicalCyclone(
            latitude, 359.0, 5000.0, max(100.0, lat_lon_grid(*shape).spacing_km), 1.6, 6.0
        ),
    )
    state = calm(grid)
    plant_cyclone(state, cyclone, grid)
    radius = (
        great_circle_km(grid.points, unit_vectors_on_sphere(latitude, 359.0))
        / cyclone.radius_of_maximum_wind
    )
    speed = np.hypot(state.eastward, state.northward)
    assert 0.6 < radius.ravel()[speed.argmax()] < 1.6
    # Holland, eqs. 5 and 6: the gradient wind at the radius of maximum wind
    turn = 7.292e-5 * np.sin(np.radians(18)) * cyclone.radius_of_maximum_wind * 1e3
    assert speed.max() == pytest.approx(np.sqrt(1.6 * 5000 / 1.2 / np.e + turn**2) - turn, rel=0.1)
    assert radius.ravel()[state.pressure.argmin()] < 0.8
    assert 101_000 - state.pressure.min() == pytest.approx(5000, rel=0.25)
    assert state.middle.ravel()[radius.argmin()] > 264 and state.high.ravel()[radius.argmin()] > 222
    assert state.humidity.max() <= 0.98 and state.precipitation.max() > 1e-6
    rotation = grid.vorticity(state.eastward, state.northward)[radius < 1].mean()
    assert np.sign(rotation) == np.sign(latitude) and abs(rotation) > 5e-5
    far = radius > 13
    assert speed[far].max() < 0.5 and np.abs(state.pressure[far] - 101_000).max() < 10


@pytest.mark.parametrize("hemisphere", [1, -1])
def test_a_river_blows_along_its_axis_towards_the_pole_with_low_pressure_on_the_cold_side(
    hemisphere,
):
    latitudes = hemisphere * np.linspace(25, 48, 40)
    axis = np.stack([latitudes, np.linspace(340, 380, 40) % 360], 1)
    river, state = AtmosphericRiver(axis, 25.0, 300.0), calm(GRID)
    assert 3500 < river.length_km < 5000
    plant_atmospheric_river(state, river, GRID)
    middle = np.unravel_index((GRID.points @ unit_vectors_on_sphere(*axis[20])).argmax(), (96, 144))
    assert state.eastward[middle] > 10 and hemisphere * state.northward[middle] > 8
    assert (
        state.humidity[middle] > 0.9
        and state.column[middle] > 1.5
        and state.precipitation[middle] > 5e-8
    )
    row, column = middle
    west, east = state.pressure[row, (column - 4) % 144], state.pressure[row, (column + 4) % 144]
    assert west < 101_000 - 200 < 101_000 + 200 < east
    assert np.hypot(state.eastward, state.northward).max() <= 25.0


# --- reproducibility ---


def test_a_sample_follows_from_seed_and_index_alone():
    first = make_planted_sample(GRID, 9, 3)
    make_planted_sample(GRID, 9, 4)
    again = make_planted_sample(GRID, 9, 3)
    np.testing.assert_array_equal(first.fields, again.fields)
    assert first.cyclones == again.cyclones
    assert not np.array_equal(first.fields, make_planted_sample(GRID, 9, 4).fields)
    assert not np.array_equal(first.fields, make_planted_sample(GRID, 10, 3).fields)


def test_the_published_grid_shows_the_weather_of_the_small_one():
    coarse, fine = (
        make_planted_sample(lat_lon_grid(height, height * 3 // 2), 11, 0, mean_cyclones=0)
        for height in (96, 192)
    )
    # every second row of the fine grid lies near a row of the coarse one
    rows = np.round(np.linspace(0, 191, 96)).astype(int)
    for name in ("PSL", "T500", "Z200"):
        first, second = channel(coarse, name), channel(fine, name)[rows][:, ::2]
        first, second = (values - values.mean(1, keepdims=True) for values in (first, second))
        assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.97, name


def test_planted_numbers_follow_the_means():
    counts = np.array(
        [
            (len(sample.cyclones), len(sample.rivers))
            for sample in (
                make_planted_sample(lat_lon_grid(24, 36), 12, index) for index in range(150)
            )
        ]
    )
    expected = fields_module.MEAN_CYCLONES, fields_module.MEAN_RIVERS
    np.testing.assert_allclose(counts.mean(0), expected, atol=4 * np.sqrt(max(expected) / 150))
