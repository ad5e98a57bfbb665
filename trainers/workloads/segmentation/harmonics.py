"""Random fields on the sphere with a given spectrum, from spherical harmonics.

A field f = sum_lm a_lm Y_lm has the spectrum sum_m |a_lm|^2, the variance at total wave number l. Fields are isotropic
and independent of the grid's poles.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainers.workloads.segmentation.grid import Values

LARGEST_DEGREE = 213
"""The truncation for large grids (about 190 km, as in a T213 model); its Legendre table takes 70 MB."""

Coefficients = NDArray[np.complex128]


def harmonic_degree(height: int) -> int:
    """Return the truncation for a grid of ``height`` latitudes: the usual two thirds of what the grid could resolve."""
    return max(4, min(LARGEST_DEGREE, 2 * height // 3))


def random_coefficients(
    generator: np.random.Generator, slopes: Sequence[float], degree: int, peak: int
) -> Coefficients:
    """Draw coefficients of one random field per slope, ``(fields, degree + 1, degree + 1)``, indexed by l and m >= 0.

    The spectrum falls as ``l ** slope`` beyond ``peak`` and rises as l below it; the field's variance is 1. The
    random numbers of a wave do not depend on the truncation, so that a finer grid shows the same weather.
    """
    waves = np.arange(1, degree + 1)
    coefficients = np.zeros((len(slopes), degree + 1, degree + 1), dtype=np.complex128)
    for wave in waves:
        parts = generator.standard_normal((len(slopes), wave + 1, 2))
        coefficients[:, wave, : wave + 1] = (parts[..., 0] + 1j * parts[..., 1]) / np.sqrt(2)
    coefficients[:, :, 0] = coefficients[:, :, 0].real * np.sqrt(2)
    spectra = np.stack([(waves / peak) ** np.where(waves < peak, 1.0, slope) for slope in slopes])
    spectra *= 4 * np.pi / spectra.sum(1, keepdims=True)
    coefficients[:, 1:] *= np.sqrt(spectra / (2 * waves + 1))[:, :, None]
    return coefficients


def harmonic_synthesis(coefficients: Coefficients, height: int, width: int) -> Values:
    """Return the real fields with these coefficients on a grid, ``(fields, height, width)``."""
    fields, degree = coefficients.shape[0], coefficients.shape[1] - 1
    waves = np.zeros((fields, width // 2 + 1, height), dtype=np.complex128)
    for order, table in enumerate(_legendre_tables(height, degree)[: waves.shape[1]]):
        part = coefficients[:, order:, order]
        waves[:, order] = part.real @ table + 1j * (part.imag @ table)
    return np.fft.irfft(waves.transpose(0, 2, 1) * width, n=width, axis=2)


@functools.lru_cache(maxsize=4)
def _legendre_tables(height: int, degree: int) -> list[NDArray[np.float32]]:
    """Return the orthonormal associated Legendre functions for each order m, ``(degree + 1 - m, height)``.

    They are computed by the three-term recurrence in l, which is stable for increasing l (Press et al., Numerical
    Recipes, section 6.7).
    """
    x = np.sin(np.radians(np.linspace(-90, 90, height)))
    cosine = np.sqrt(1 - x * x)
    diagonal = np.full(height, np.sqrt(1 / (4 * np.pi)))
    tables = []
    for m in range(degree + 1):
        if m:
            diagonal = -np.sqrt((2 * m + 1) / (2 * m)) * cosine * diagonal
        rows = [diagonal]
        if m < degree:
            rows.append(np.sqrt(2 * m + 3) * x * diagonal)
        for l in range(m + 2, degree + 1):  # noqa: E741
            scale = np.sqrt((4 * l * l - 1) / (l * l - m * m))
            former = np.sqrt(((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1))
            rows.append(scale * (x * rows[-1] - former * rows[-2]))
        tables.append(np.array(rows, dtype=np.float32))
    return tables
