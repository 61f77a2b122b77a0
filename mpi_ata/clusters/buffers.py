"""Memory for large arrays that is used again: fresh memory costs more than what is done with it.

Ranks on one node share some of it, through a file in memory that has no name once all have opened it: so
nothing is left behind, however they end.
"""

import mmap
import os
from contextlib import suppress
from functools import partial
from weakref import ref

import numpy as np

from mpi_ata.arrays import Array

FOLDER = "/dev/shm"  # noqa: S108  (only there is a file memory; where it is not, nothing is shared)
NOWHERE = -1
Held = dict[int, tuple[int, "ref[Array]"]]  # by id of the array: its place, and what tells when it is free


class BufferPool:
    """Places for arrays of one form; one is free again as soon as nobody holds its array, or a view of it."""

    def __init__(self, template: Array) -> None:
        self._shape, self._dtype, self._bytes = template.shape, template.dtype, template.nbytes
        self._memory: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._held: Held = {}

    def take(self) -> Array:
        """An array in a free place; MemoryError where there is no room."""
        number = self._free.pop() if self._free else len(self._memory)
        array = self.at(number)
        release = partial(_release, self._held, self._free, id(array))  # which does not keep all this alive
        self._held[id(array)] = number, ref(array, release)
        return array

    def at(self, number: int) -> Array:
        """The array in this place."""
        if number not in self._memory:
            self._memory[number] = self._mapped(number)
        # Directly on the memory: so a view of the array refers to the array, not past it.
        return np.ndarray(self._shape, self._dtype, self._memory[number])

    def number_of(self, array: Array | None) -> int:
        """The place that was taken with this very array, or NOWHERE."""
        return self._held[id(array)][0] if id(array) in self._held else NOWHERE

    def _mapped(self, number: int) -> mmap.mmap:
        return mmap.mmap(-1, self._bytes)


class SharedBufferPool(BufferPool):
    """The same, but in memory that ranks on one node share: the first one takes, others look where told.

    Of what the node still has, each new place takes half at most.
    """

    def __init__(self, template: Array, name: str, owner: bool = False) -> None:
        super().__init__(template)
        self._stride = -(-template.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._path, self._owner = f"{FOLDER}/{name}", owner
        self._file = os.open(self._path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if owner else 0), 0o600)
        self._latest: tuple[Array, Array] | None = None  # a point, and the place it was put into

    def put(self, x: Array) -> Array:
        """The point in a place: x if it is in one, else a copy; x where there is no room."""
        if self._latest is not None and self._latest[0] is x:
            return self._latest[1]
        if self.number_of(x) != NOWHERE or (place := self.free()) is None:
            return x
        np.copyto(place, x)
        self._latest = x, place
        return place

    def free(self) -> Array | None:
        """An array in a free place, if there is room."""
        try:
            return self.take()
        except MemoryError:
            return None

    def _mapped(self, number: int) -> mmap.mmap:
        if self._owner:
            self._reserve(number * self._stride)
        return mmap.mmap(self._file, self._bytes, offset=number * self._stride)

    def _reserve(self, begin: int) -> None:
        """Make sure of the memory now: where it is found lacking later, the process is killed."""
        try:
            if self._stride > self.room() // 2:
                raise MemoryError
            os.posix_fallocate(self._file, begin, self._stride)
        except OSError:
            raise MemoryError from None

    def room(self) -> int:
        """The bytes that the node has left to share."""
        state = os.fstatvfs(self._file)
        return state.f_bavail * state.f_frsize

    def unlink(self) -> None:
        """Take the file out of the file system, now that everyone has it."""
        if self._owner:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def close(self) -> None:
        """Give out no more places; those that are held remain."""
        self.unlink()
        self._latest = None
        self._memory.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _release(held: Held, free: list[int], key: int, _: object) -> None:
    free.append(held.pop(key)[0])
