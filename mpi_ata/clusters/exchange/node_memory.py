"""Memory that the workers of a node share for an exchange: a slot for each, into which only it writes.

So a worker that was suspended for a while and writes late can damage only its own slot, which nobody reads
before the worker's notification.  The file is unlinked as soon as all have opened it, and takes no memory
before: a kill at any time leaves at most an empty file behind.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import FOLDER, reserve, slot_size

CLOSED = -1


class NodeMemory:
    """Slots for arrays like `template`, by rank; the first of the ranks reserves them all."""

    def __init__(self, template: Array, name: str, ranks: Sequence[int], rank: int) -> None:
        self._shape, self._dtype, self._stride = template.shape, template.dtype, slot_size(template)
        self._place = {rank: place for place, rank in enumerate(ranks)}
        self._path, self._file = f"{FOLDER}/{name}", CLOSED
        self._memory: mmap.mmap | None = None
        self._reserves = rank == ranks[0]
        with suppress(OSError):  # whoever comes first creates it
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    @property
    def _bytes(self) -> int:
        return len(self._place) * self._stride

    @property
    def usable(self) -> bool:
        """Whether it was reserved, and this rank sees it: containers may have a /dev/shm of their own."""
        return self._memory is not None

    def reserve(self) -> None:
        """Remove the file's name, now that everyone has opened the file, and reserve its memory."""
        if self._file == CLOSED:
            return
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        if self._reserves:
            with suppress(MemoryError):  # others see by its size that nothing was reserved
                reserve(self._file, 0, self._bytes)

    def map(self) -> None:
        """Map the memory, now that it is reserved."""
        if self._file == CLOSED:
            return
        with suppress(OSError):
            if os.fstat(self._file).st_size == self._bytes:
                self._memory = mmap.mmap(self._file, self._bytes)
        os.close(self._file)
        self._file = CLOSED

    def at(self, rank: int) -> Array:
        """Return the array in a rank's slot."""
        assert self._memory is not None
        return np.ndarray(self._shape, self._dtype, self._memory, self._place[rank] * self._stride)

    def close(self) -> None:
        """Stop using the memory."""
        self._memory = None
