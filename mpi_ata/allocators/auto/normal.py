"""The normal distribution in plain numpy, which has no error function."""

import math

import numpy as np

from mpi_ata.arrays import Array

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_CDF = (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530)  # highest power first
_CDF_STEP = 0.2316419


def tail_and_loss(z: Array) -> tuple[Array, Array]:
    """Return P(Z > z) and E max(Z - z, 0) for a standard normal Z, to 1e-7 (Abramowitz-Stegun 26.2.17)."""
    size = np.abs(z)
    t = 1.0 / (1.0 + _CDF_STEP * size)
    polynomial = np.full_like(t, _CDF[0])
    for coefficient in _CDF[1:]:
        polynomial *= t
        polynomial += coefficient
    density = np.exp(-0.5 * z * z - _HALF_LOG_2_PI)
    tail = density * polynomial
    tail *= t
    tail = np.where(z < 0.0, 1.0 - tail, tail)
    return tail, np.maximum(density - z * tail, 0.0)


def quantile_above(chance: Array) -> Array:
    """Return the z with P(Z > z) = chance for chances up to 1/2, to 5e-4 (Abramowitz-Stegun 26.2.23)."""
    t = np.sqrt(-2.0 * np.log(chance))
    numerator = (0.010328 * t + 0.802853) * t + 2.515517
    return t - numerator / (((0.001308 * t + 0.189269) * t + 1.432788) * t + 1.0)
