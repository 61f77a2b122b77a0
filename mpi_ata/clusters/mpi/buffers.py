"""Reusable memory for large arrays: fresh memory costs more than the work done in it.

Ranks on one node share some of it through a memory-backed file, which is unlinked as soon as all have opened
it, so that nothing is left behind however they end.
"""

import mmap
import os
import stat
from contextlib import suppress
from functools import partial
from weakref import ref

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.launch import host_name

FOLDER = "/dev/shm"  # noqa: S108  (only there a file is memory; where it is missing, nothing is shared)
NOWHERE = -1
SMALL_BYTES = 4096  # arrays up to this size are sent with the header of a message, and need not be shared
Held = dict[int, tuple[int, "ref[Array]"]]  # by id of the array: its slot, and a reference that frees it


def shared_file(name: str, create: bool) -> int:
    """Return the descriptor of a file in memory; OSError where it is not this user's own.

    Others can write to the same folder, so its name should be one that nobody can guess.
    """
    new = os.O_CREAT | os.O_EXCL if create else 0
    file = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | new, 0o600)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(file)
        raise PermissionError(f"{name} belongs to somebody else")
    return file


def unlink_shared_file(name: str) -> None:
    """Remove the name of a file in memory, now that everyone has opened it."""
    with suppress(OSError):
        os.unlink(f"{FOLDER}/{name}")


class BufferPool:
    """Slots for arrays like `template`; one is free again when nobody holds its array or a view of it."""

    def __init__(self, template: Array) -> None:
        self.shape, self.dtype, self.bytes = template.shape, template.dtype, template.nbytes
        self._memory: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._held: Held = {}

    def take(self) -> Array:
        """Return an array in a free slot; MemoryError if memory is full."""
        number = self._free.pop() if self._free else len(self._memory)
        array = self.at(number)
        release = partial(_release, self._held, self._free, id(array))  # which does not keep the pool alive
        self._held[id(array)] = number, ref(array, release)
        return array

    def at(self, number: int) -> Array:
        """Return the array in this slot."""
        if number not in self._memory:
            self._memory[number] = self._mapped(number)
        # Directly on the memory, so that a view of the array holds the array and not the memory alone.
        return np.ndarray(self.shape, self.dtype, self._memory[number])

    def number_of(self, array: Array | None) -> int:
        """Return the slot of an array that was taken here, or NOWHERE."""
        return self._held[id(array)][0] if id(array) in self._held else NOWHERE

    def _mapped(self, number: int) -> mmap.mmap:
        return mmap.mmap(-1, self.bytes)


class SharedBufferPool(BufferPool):
    """Slots in memory that ranks on one node share: the owner takes them, others open them by number.

    A new slot takes at most half of the shared memory that is left.
    """

    def __init__(self, template: Array, name: str, owner: bool = False) -> None:
        super().__init__(template)
        pages = -(-template.nbytes // mmap.ALLOCATIONGRANULARITY)
        self._stride = pages * mmap.ALLOCATIONGRANULARITY
        self._name, self._owner = name, owner
        self._file = shared_file(name, create=owner)
        self._latest: tuple[Array, Array] | None = None  # a point, and its copy here

    def put(self, x: Array) -> Array:
        """Return x in a slot: x itself if it is in one, else a copy; x where there is no room."""
        if self._latest is not None and self._latest[0] is x:
            return self._latest[1]
        if self.number_of(x) != NOWHERE or (copy := self.free()) is None:
            return x
        np.copyto(copy, x)
        self._latest = x, copy
        return copy

    def free(self) -> Array | None:
        """Return an array in a free slot, if there is room."""
        try:
            return self.take()
        except MemoryError:
            return None

    def _mapped(self, number: int) -> mmap.mmap:
        if self._owner:
            self._reserve(number)
        return mmap.mmap(self._file, self.bytes, offset=number * self._stride)

    def _reserve(self, number: int) -> None:
        """Reserve the memory of a slot now: running out of it later would be fatal."""
        try:
            if self._stride > self.room() // 2:
                raise MemoryError
            os.posix_fallocate(self._file, number * self._stride, self._stride)
        except OSError:
            raise MemoryError from None

    def room(self) -> int:
        """Return how many bytes of shared memory are left."""
        state = os.fstatvfs(self._file)
        return state.f_bavail * state.f_frsize

    def unlink(self) -> None:
        """Remove the file's name, now that everyone has opened it."""
        if self._owner:
            unlink_shared_file(self._name)

    def close(self) -> None:
        """Give out no more slots; those that are held remain."""
        self.unlink()
        self._latest = None
        self._memory.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def shared_buffers(
    manager_host: str, name: str, template: Array, owner: bool = False
) -> SharedBufferPool | None:
    """Return memory shared with the manager; None where it is on another node, or arrays are small."""
    if template.nbytes <= SMALL_BYTES or manager_host != host_name():
        return None
    try:
        return SharedBufferPool(template, name, owner)
    except OSError:
        return None


def _release(held: Held, free: list[int], key: int, _: object) -> None:
    free.append(held.pop(key)[0])
