"""The orders of a round that go out together and come back together, in as few steps as Python allows.

Most rounds of small arrays are like that.  As soon as anything else happens (a task fails, a worker is lost
or takes long), they become single orders, and what has come of them is read again, as single messages.
"""

import math
from itertools import compress
from time import perf_counter

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import ARRIVAL, HEADER, ORDER, TOGETHER, Channel, Message
from mpi_ata.clusters.interface import Arrivals, surely_finite
from mpi_ata.layout import MANAGER

NOTHING = bytearray()
unpack = HEADER.unpack_from


class Batch:
    """Orders at the point x, the first of which has this number: counts[j] tasks for workers[j]."""

    def __init__(
        self,
        workers: IntArray,
        ranks: list[int],
        x: Array,
        first: int,
        round: int,
        counts: list[int],
        excused: float,
    ) -> None:
        self.workers, self.x, self.first, self.round, self.counts = workers, x, first, round, counts
        self._ranks = ranks
        self.sent, self.excused = perf_counter(), excused  # seconds of suspension before it was sent
        self.left = k = len(workers)  # orders that have not come back
        self._rows = [NOTHING] * k  # the bytes of their results
        self._seconds: list[list[float]] = [[]] * k
        self._came = [0.0] * k  # when

    def send(self, channel: Channel) -> None:
        """Send the orders."""
        pack, point, round, first = HEADER.pack, self.x.tobytes(), self.round, self.first
        size = len(point)
        messages = [
            pack(MANAGER, ORDER, number, round, count, 0, size, NOWHERE, NOWHERE, TOGETHER) + point
            for number, count in enumerate(self.counts, first)
        ]
        channel.send_short(messages, self._ranks)

    def read(self, channel: Channel) -> bool | None:
        """Read what has come; return None if nothing has, and False if it is something else."""
        before = self.left
        try:
            fine = self._read(channel)
        except Exception as error:
            channel.note_loss(error)
            return False
        return fine and (self.left < before or None)

    def _read(self, channel: Channel) -> bool:
        """Read what has come, up to something else: return whether there is none."""
        filled, empty, buffer, times = channel.filled, channel.empty, channel.buffer, channel.seconds
        ranks, first, width, k = self._ranks, self.first, self.x.nbytes, len(self._rows)
        while self.left and filled():
            sender, kind, number, _, _, count, size, _, _, flags = unpack(buffer)
            j = number - first
            if kind != ARRIVAL or not 0 <= j < k or sender != ranks[j] or flags or size != width:
                channel.unread()
                return False
            begin = HEADER.size + 8 * count
            self._rows[j] = buffer[begin : begin + size]
            self._seconds[j] = times[:count].tolist()  # type: ignore[assignment]
            self._came[j] = perf_counter()
            empty()
            self.left -= 1
        return True

    def arrivals(self, slack: float) -> Arrivals | None:
        """Return what has come; None if a result or a time has to be looked at by itself.

        `slack` is by how much reported times may be longer than those that were measured here.
        """
        spent = [seconds[0] if len(seconds) == 1 else _sum(seconds) for seconds in self._seconds]
        turnarounds = [came - self.sent for came in self._came]
        for seconds, longest in zip(spent, turnarounds, strict=True):
            if not 0.0 <= seconds <= longest + slack:
                return None
        shape = (len(spent), *self.x.shape)
        results: Array = np.ndarray(shape, self.x.dtype, bytearray().join(self._rows))
        if not surely_finite(results):
            return None
        overheads = [max(longest - own, 0.0) for longest, own in zip(turnarounds, spent, strict=True)]
        return Arrivals(self.workers, results, self._seconds, spent, overheads)

    def messages(self) -> list[Message]:
        """Return what has come so far as single messages, in the order in which it came."""
        found = []
        for j in sorted(compress(range(len(self._rows)), self._came), key=self._came.__getitem__):
            payload: Array = np.ndarray(self.x.shape, self.x.dtype, self._rows[j])
            order, count, rank = self.first + j, self.counts[j], self._ranks[j]
            fields = order, 0, count, NOWHERE, NOWHERE, 0
            found.append(Message(rank, ARRIVAL, *fields, self._seconds[j], payload))
        return found


def _sum(seconds: list[float]) -> float:
    """Return the sum of times; NaN if one is negative."""
    return math.fsum(seconds) if min(seconds) >= 0.0 else math.nan
