"""How messages travel between manager and workers: a header of 64 bytes, and up to two arrays.

Arrays that fit go along with the header; larger ones follow by themselves and are received blocking,
since a large message that advances only between pauses crawls.  Buffers only, nothing is pickled.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]
Payload = npt.NDArray[Any]

HEADER = Struct("<8q")  # sender, kind, order, round, count, together, size of the first array, of the second
INLINE = 4096
PIECE = 1 << 30  # counts in MPI are 32-bit integers
MESSAGE, FOLLOWING = 1, 2  # tags
EMPTY: Payload = np.empty(0, np.uint8)


class Kind(IntEnum):
    """What a message says."""

    ORDER = 1  # manager to worker: do `count` tasks; second array: the point
    STOP = 2  # manager to worker: withdraw this order
    END = 3  # manager to worker: no more orders; and back: gone
    READY = 4  # worker to manager: set up; count: whether its bell was heard
    ARRIVAL = 5  # worker to manager: `count` tasks; first array: their seconds, second: the sum of results
    STOPPED = 6  # worker to manager: after STOP; `count` tasks begun and not sent, in so many seconds
    FAILED = 7  # worker to manager: second array: what went wrong, as text


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as it was received."""

    sender: int
    kind: Kind
    order: int
    round: int
    count: int
    together: bool
    seconds: list[float]
    payload: Bytes


class Post:
    """Sends messages to anyone, receives them from `source`."""

    def __init__(self, comm: "MPI.Comm", source: int) -> None:
        self._comm, self._source, self._rank = comm, source, comm.Get_rank()
        self._sending: list[tuple[MPI.Request, Bytes]] = []  # a buffer lives until its request is done
        self._buffer: Bytes = np.empty(HEADER.size + INLINE, np.uint8)
        self._request = comm.Irecv(self._buffer, source, MESSAGE)

    def send(
        self,
        to: int,
        kind: Kind,
        order: int = 0,
        round: int = 0,
        count: int = 0,
        together: bool = False,
        seconds: list[float] | None = None,
        payload: Payload = EMPTY,
    ) -> None:
        """Send a message without waiting; `payload` must not change until it is sent."""
        parts = [_bytes(np.array(seconds or [], np.float64)), _bytes(payload)]
        sizes = [len(part) for part in parts]
        header = HEADER.pack(self._rank, kind, order, round, count, together, *sizes)
        inline = sum(sizes) <= INLINE
        head = np.frombuffer(header, np.uint8)
        self._isend(np.concatenate([head, *parts]) if inline else head, to, MESSAGE)
        if not inline:
            for part in parts:
                for begin in range(0, len(part), PIECE):
                    self._isend(part[begin : begin + PIECE], to, FOLLOWING)

    def _isend(self, part: Bytes, to: int, tag: int) -> None:
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
        sender, kind, order, round, count, together, *sizes = HEADER.unpack_from(self._buffer.data)
        if sum(sizes) <= INLINE:
            middle = HEADER.size + sizes[0]
            first = self._buffer[HEADER.size : middle].copy()
            second = self._buffer[middle : middle + sizes[1]].copy()
        else:
            first, second = (self._following(sender, size) for size in sizes)
        self._request = self._comm.Irecv(self._buffer, self._source, MESSAGE)
        seconds = first.view(np.float64).tolist()
        return Message(sender, Kind(kind), order, round, count, bool(together), seconds, second)

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


def _bytes(array: Payload) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
