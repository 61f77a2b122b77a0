"""How messages travel between manager and workers: a header of 64 bytes, the seconds of tasks, and one array.

What fits goes along with the header; what does not follows by itself and is received blocking, since a
large message that advances only between pauses crawls.  Buffers only, nothing is pickled.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]
Payload = npt.NDArray[Any]

HEADER = Struct("<8q")  # sender, kind, order, round, tasks, together, bytes of seconds, bytes of the array
INLINE = 4096
PIECE = 1 << 30  # counts in MPI are 32-bit integers
MESSAGE, FOLLOWING = 1, 2  # tags
EMPTY: Payload = np.empty(0, np.uint8)


class Kind(IntEnum):
    """What a message says."""

    ORDER = 1  # manager to worker: do so many tasks at a point
    STOP = 2  # manager to worker: withdraw this order
    END = 3  # manager to worker: no more orders, together: for good; and back: gone
    READY = 4  # worker to manager: set up; tasks: whether its bell was heard
    ARRIVAL = 5  # worker to manager: so many tasks, their seconds, the sum of their results
    STOPPED = 6  # worker to manager: after STOP: so many tasks begun and not sent, in so many seconds
    FAILED = 7  # worker to manager: what went wrong, as text


class Message(NamedTuple):
    """One message, as it was received."""

    sender: int
    kind: Kind
    order: int
    round: int
    tasks: int
    together: bool
    seconds: list[float]
    payload: Bytes


class Post:
    """Sends messages to anyone, receives them from `source`."""

    def __init__(self, comm: "MPI.Comm", source: int) -> None:
        self._comm, self._source, self._rank = comm, source, comm.Get_rank()
        self._sending: list[tuple[MPI.Request, object]] = []  # a buffer lives until its request is done
        self._buffer = bytearray(HEADER.size + INLINE)
        self._request = comm.Irecv(self._buffer, source, MESSAGE)

    def send(
        self,
        to: int,
        kind: Kind,
        order: int = 0,
        round: int = 0,
        tasks: int = 0,
        together: bool = False,
        seconds: Sequence[float] = (),
        payload: Payload = EMPTY,
    ) -> None:
        """Send a message without waiting; `payload` must not change until it is sent."""
        parts = [pack(f"<{len(seconds)}d", *seconds), payload]
        sizes = [8 * len(seconds), payload.nbytes]
        message = HEADER.pack(self._rank, kind, order, round, tasks, together, *sizes)
        fitting = _fitting(sizes)
        self._isend(b"".join([message, *(bytes(part) for part in parts[:fitting])]), to, MESSAGE)
        for part in parts[fitting:]:
            whole = np.frombuffer(np.ascontiguousarray(part), np.uint8)
            for begin in range(0, len(whole), PIECE):
                self._isend(whole[begin : begin + PIECE], to, FOLLOWING)

    def _isend(self, part: bytes | Bytes, to: int, tag: int) -> None:
        request = self._comm.Isend(part, to, tag)
        if not request.Test():
            self._sending.append((request, part))

    def sending(self) -> bool:
        """Push on what is being sent; whether anything is left."""
        if self._sending:
            self._sending = [(request, part) for request, part in self._sending if not request.Test()]
        return bool(self._sending)

    def flush(self) -> None:
        """Wait until everything was sent."""
        for request, _ in self._sending:
            request.Wait()
        self._sending = []

    def poll(self) -> Message | None:
        """The next message, if one is there."""
        if not self._request.Test():
            return None
        sender, kind, order, round, tasks, together, *sizes = HEADER.unpack_from(self._buffer)
        parts, begin = [], HEADER.size
        for size in sizes[: _fitting(sizes)]:
            parts.append(np.frombuffer(self._buffer[begin : begin + size], np.uint8))
            begin += size
        parts += [self._following(sender, size) for size in sizes[len(parts) :]]
        self._request = self._comm.Irecv(self._buffer, self._source, MESSAGE)
        seconds = parts[0].view(np.float64).tolist()
        return Message(sender, Kind(kind), order, round, tasks, bool(together), seconds, parts[1])

    def _following(self, sender: int, size: int) -> Bytes:
        part: Bytes = np.empty(size, np.uint8)
        for begin in range(0, size, PIECE):
            self._comm.Recv(part[begin : begin + PIECE], sender, FOLLOWING)
        return part

    def close(self) -> None:
        """Take back the request for a message that will not come."""
        self.flush()
        self._request.Cancel()
        self._request.Wait()


def _fitting(sizes: list[int]) -> int:
    """How many parts of a message fit in beside its header."""
    return 0 if sizes[0] > INLINE else 1 if sum(sizes) > INLINE else 2
