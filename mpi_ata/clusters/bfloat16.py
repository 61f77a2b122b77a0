"""Half as many bytes per number: results, and points, that travel as bfloat16.

A bfloat16 is the upper half of a float32: the same range, 8 significant bits.  Numbers are rounded to the
nearest one, ties to even, so each is off by at most 2**-8 of itself.  What the ranks of a node share in
memory is rounded too: results do not depend on where workers are.
"""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, blocks
from mpi_ata.problems import ProblemAbilities

NAN = 0x7FC0_0000
SAVED = 2  # bytes, by sending a number as bfloat16 instead of float32
UPPER = int(sys.byteorder == "little")  # which half of a float32 in memory is the upper one
Bits = npt.NDArray[np.uint32]


class Wire:
    """How arrays like x travel: their first `halved` numbers as bfloat16, the others as they are."""

    def __init__(self, template: Array, halved: int) -> None:
        if halved and template.dtype != np.float32:
            raise ValueError(f"x0 is {template.dtype}, but only float32 can be sent as bfloat16")
        self._template, self._halved = template, halved
        self._latest: tuple[Array, Array] | None = None  # a point, and what it was rounded to
        self._sent: tuple[Array, npt.NDArray[np.uint8]] | None = None  # and what it was packed to

    def __bool__(self) -> bool:
        return self._halved > 0

    def round(self, values: Array) -> None:
        """Round in place what travels as bfloat16."""
        if not self._halved:
            return
        for (part,) in blocks(values.reshape(-1)[: self._halved]):
            _round(part.view(np.uint32), part)

    def rounded(self, x: Array) -> Array:
        """Return a point, rounded; the same array for the same point."""
        if not self._halved:
            return x
        if self._latest is None or self._latest[0] is not x:
            copy = x.copy()
            self.round(copy)
            self._latest = x, copy
        return self._latest[1]

    def pack(self, values: Array) -> npt.NDArray[np.uint8]:
        """Return values, rounded, as they are sent."""
        row, end = values.reshape(-1), 2 * self._halved
        data = np.empty(end + 4 * (row.size - self._halved), np.uint8)
        for part, upper in blocks(row[: self._halved], data[:end].view(np.uint16)):
            copy = part.copy()
            _round(copy.view(np.uint32), copy)
            upper[:] = copy.view(np.uint16)[UPPER::2]
        data[end:] = row[self._halved :].view(np.uint8)
        return data

    def packed_point(self, x: Array) -> npt.NDArray[Any]:
        """Return a point as it is sent; the same array for the same point."""
        if not self._halved:
            return x
        if self._sent is None or self._sent[0] is not x:
            self._sent = x, self.pack(x)
        return self._sent[1]

    def unpack(self, data: npt.NDArray[Any], values: Array) -> Array:
        """Return what was packed, in the array `values`."""
        row, end = values.reshape(-1), 2 * self._halved
        if data.nbytes != end + 4 * (row.size - self._halved):
            return data  # whatever it is, the checks of results reject it
        halves = row[: self._halved].view(np.uint16)
        halves[1 - UPPER :: 2] = 0
        halves[UPPER::2] = data[:end].view(np.uint16)
        row[self._halved :].view(np.uint8)[:] = data[end:]
        return values


def _round(bits: Bits, values: Array) -> None:
    """Round the numbers with these bits; NaN stays NaN, which adding to its bits might not."""
    missing = np.isnan(values)
    bits += ((bits >> 16) & 1) + np.uint32(0x7FFF)
    bits &= np.uint32(0xFFFF0000)
    bits[missing] = NAN


def halved_numbers(problem: object) -> tuple[int, int]:
    """Return how many numbers of x and of a result travel as bfloat16: none unless the problem says so."""
    found = ProblemAbilities.of(problem)
    return found.halved_x, found.halved_results


def point_wire(problem: object, template: Array) -> Wire:
    """Return how the points of a problem travel."""
    return Wire(template, halved_numbers(problem)[0])


def results_wire(problem: object, template: Array) -> Wire:
    """Return how the results of a problem travel."""
    return Wire(template, halved_numbers(problem)[1])


def halves(problem: object) -> bool:
    """Return whether anything of a problem travels as bfloat16."""
    return any(halved_numbers(problem))


def exchange_of(problem: object, exchange: str) -> str:
    """Return the exchange to use: a chain adds up results on their way, which would be rounded each time."""
    return "star" if halves(problem) else exchange
