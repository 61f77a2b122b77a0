"""Arrays in pieces, which are passed on one by one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array

PIECE = 1 << 16  # bytes: a chain of n workers is filled after n pieces


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Yield the memory of an array in pieces."""
    data = as_bytes(array)
    for begin in range(0, len(data), PIECE):
        yield data[begin : begin + PIECE]


def parts(array: Array) -> Iterator[Array]:
    """Yield the numbers of an array in pieces."""
    numbers = np.ascontiguousarray(array).reshape(-1)
    count = PIECE // numbers.itemsize
    for begin in range(0, numbers.size, count):
        yield numbers[begin : begin + count]
