"""The orders of a round as one batch: sent together and collected together, in as few steps as possible.

Most rounds of small arrays can be handled in this way.  As soon as anything unexpected happens (a task fails,
a worker is lost or takes long), a batch becomes single orders, and the results that have arrived are handled
again, as single messages.
"""

import math
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
    """Orders at the point x, the first of which has this number: counts[j] tasks for workers[j].

    `excused` are the seconds for which this process was suspended before they are sent.  Reported times may
    be longer than those measured here by up to `slack` seconds.
    """

    def __init__(
        self,
        workers: IntArray,
        ranks: list[int],
        x: Array,
        first: int,
        round: int,
        counts: list[int],
        excused: float = 0.0,
        slack: float = 0.0,
    ) -> None:
        self.workers, self.x, self.first, self.round, self.counts = workers, x, first, round, counts
        self._ranks, self._slack = ranks, slack
        self.sent, self.excused = math.inf, excused
        self.left = k = len(workers)  # orders that have not come back
        self.came: dict[int, float] = {}  # when the others came, by position, in the order in which they came
        self._rows = [NOTHING] * k  # the bytes of their results
        self._seconds: list[list[float]] = [[]] * k
        self._spent, self._overheads = [0.0] * k, [0.0] * k
        self._plausible = True  # whether all reported times are possible

    def send(self, channel: Channel) -> None:
        """Send the orders."""
        pack, point, round, first = HEADER.pack, self.x.tobytes(), self.round, self.first
        size = len(point)
        messages = [
            pack(MANAGER, ORDER, number, round, count, 0, size, NOWHERE, NOWHERE, TOGETHER) + point
            for number, count in enumerate(self.counts, first)
        ]
        for message, rank in zip(messages, self._ranks, strict=True):
            channel.send_short(message, rank)
        self.sent = perf_counter()

    def read(self, channel: Channel) -> bool | None:
        """Read what has arrived: return True for results, None for nothing, False for anything else."""
        before = self.left
        expected = self._read(channel)
        return expected and (self.left < before or None)

    def _read(self, channel: Channel) -> bool:
        """Read results, and return False if another message has arrived."""
        filled, empty, buffer, times = channel.filled, channel.empty, channel.buffer, channel.seconds
        ranks, counts, first = self._ranks, self.counts, self.first
        width, k = self.x.nbytes, len(counts)
        while self.left and filled():
            # As in channel.poll(), but without an object per message.
            sender, kind, number, _, _, count, size, _, _, flags = unpack(buffer)
            j = number - first
            expected = kind == ARRIVAL and not flags and 0 <= j < k and sender == ranks[j]
            if not expected or count != counts[j] or size != width:
                channel.unread()
                return False
            begin = HEADER.size + 8 * count
            self._rows[j] = buffer[begin : begin + size]
            self._note(j, times[:count].tolist())  # type: ignore[arg-type]
            empty()
            self.left -= 1
        return True

    def _note(self, j: int, seconds: list[float]) -> None:
        """Note that an order has come back now, with the seconds of its tasks."""
        now = perf_counter()
        turnaround = now - self.sent
        spent = seconds[0] if len(seconds) == 1 else _sum(seconds)
        if not 0.0 <= spent <= turnaround + self._slack:
            self._plausible = False
        self.came[j] = now
        self._seconds[j], self._spent[j] = seconds, spent
        self._overheads[j] = turnaround - spent if turnaround > spent else 0.0

    def arrivals(self) -> Arrivals | None:
        """Return all results; None if they must be checked one by one."""
        shape = (len(self._rows), *self.x.shape)
        results: Array = np.ndarray(shape, self.x.dtype, bytearray().join(self._rows))
        if not self._plausible or not surely_finite(results):
            return None
        return Arrivals(self.workers, results, self._seconds, self._spent, self._overheads)

    def messages(self) -> list[Message]:
        """Return the results that have arrived so far as single messages, in the order of their arrival."""
        found = []
        for j in self.came:
            payload: Array = np.ndarray(self.x.shape, self.x.dtype, self._rows[j])
            fields = self.first + j, 0, self.counts[j], NOWHERE, NOWHERE, 0
            found.append(Message(self._ranks[j], ARRIVAL, *fields, self._seconds[j], payload))
        return found


def _sum(seconds: list[float]) -> float:
    """Return the sum of times; NaN if one is negative."""
    return math.fsum(seconds) if min(seconds, default=-1.0) >= 0.0 else math.nan
