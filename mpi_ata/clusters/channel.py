"""How messages travel between manager and workers: a header of 64 bytes, the seconds of tasks, and one array.

What fits goes along with the header; what does not follows by itself and is received blocking, since a
large message that advances only between pauses crawls.  Buffers only, nothing is pickled.
"""

from array import array
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import NOWHERE, BufferPool

if TYPE_CHECKING:
    from mpi4py import MPI

Payload = npt.NDArray[Any]

# sender, kind, order, round, tasks, how many seconds, bytes of the array, slot, into, together
HEADER = Struct("<2i5q2i?7x")
INLINE = 4096
PIECE = 1 << 30  # counts in MPI are 32-bit integers
MESSAGE, FOLLOWING = 1, 2  # tags
EMPTY: Payload = np.empty(0, np.uint8)

# What a message says: plain numbers, since an enumeration costs as much as the message.
ORDER = 1  # manager to worker: do so many tasks at a point
STOP = 2  # manager to worker: withdraw this order
END = 3  # manager to worker: no more orders, together: for good; and back: gone
READY = 4  # worker to manager: set up; tasks: whether its bell was heard; together: whether it shares memory
ARRIVAL = 5  # worker to manager: so many tasks, their seconds, the sum of their results
STOPPED = 6  # worker to manager: after STOP: so many tasks begun and not sent, in so many seconds
FAILED = 7  # worker to manager: what went wrong, as text


class Message(NamedTuple):
    """One message, as it was received."""

    sender: int
    kind: int
    order: int
    round: int
    tasks: int
    slot: int  # where in shared memory the array is, if it did not come along
    result_slot: int  # where in shared memory the result shall go
    together: bool
    seconds: list[float]
    payload: Payload


class Channel:
    """Sends messages to anyone, receives them from `source`; the arrays among them are of one form."""

    def __init__(self, comm: "MPI.Comm", source: int, template: Array) -> None:
        self._comm, self._rank = comm, comm.Get_rank()
        self._shape, self._dtype, self._bytes = template.shape, template.dtype, template.nbytes
        self.room = BufferPool(template)  # for arrays too large to come along
        self._sending: list[tuple[MPI.Request, object]] = []  # a buffer lives until its request is done
        self._along = HEADER.size + INLINE  # bytes of a header and what goes along with it, at most
        self._buffer = bytearray(self._along)
        self._seconds = memoryview(self._buffer)[HEADER.size :].cast("d")
        self._inbox = _inbox(comm, source, self._buffer)

    def send(
        self,
        to: int,
        kind: int,
        order: int = 0,
        round: int = 0,
        tasks: int = 0,
        together: bool = False,
        seconds: Sequence[float] = (),
        payload: Payload = EMPTY,
        slot: int = NOWHERE,
        result_slot: int = NOWHERE,
    ) -> None:
        """Send a message without waiting; `payload` must not change until it is sent."""
        count, size = len(seconds), payload.nbytes
        message = HEADER.pack(self._rank, kind, order, round, tasks, count, size, slot, result_slot, together)
        if count:
            message += array("d", seconds).tobytes()
        if len(message) + size <= self._along:
            self._isend(message + payload.tobytes() if size else message, to, MESSAGE)
            return
        fitting = min(len(message), HEADER.size + 8 * _fitting(count))
        self._isend(message[:fitting], to, MESSAGE)
        for part in (message[fitting:], np.ascontiguousarray(payload).reshape(-1).view(np.uint8)):
            for begin in range(0, len(part), PIECE):
                self._isend(part[begin : begin + PIECE], to, FOLLOWING)

    def _isend(self, part: bytes | Payload, to: int, tag: int) -> None:
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
        if not self._inbox.filled():
            return None
        header = HEADER.unpack_from(self._buffer)
        sender, kind, order, round, tasks, count, size, slot, result_slot, together = header
        seconds: list[float] = self._seconds[: _fitting(count)].tolist()  # type: ignore[assignment]
        begin = HEADER.size + 8 * count
        if begin + size <= self._along:
            payload = self._formed(self._buffer[begin : begin + size]) if size else EMPTY
        else:
            if len(seconds) < count:
                seconds = self._following(sender, np.empty(count)).tolist()
            payload = self._following(sender, self._place(size)) if size else EMPTY
        self._inbox.empty()
        return Message(sender, kind, order, round, tasks, slot, result_slot, together, seconds, payload)

    def _formed(self, data: bytearray) -> Payload:
        if len(data) == self._bytes:
            return np.ndarray(self._shape, self._dtype, data)
        return np.frombuffer(data, np.uint8)

    def _place(self, size: int) -> Payload:
        if size != self._bytes:
            return np.empty(size, np.uint8)
        return self.room.take()

    def _following(self, sender: int, place: Payload) -> Payload:
        part = place.reshape(-1).view(np.uint8)
        for begin in range(0, len(part), PIECE):
            self._comm.Recv(part[begin : begin + PIECE], sender, FOLLOWING)
        return place

    def close(self) -> None:
        """Take back the request for a message that will not come."""
        self.flush()
        self._inbox.close()


class _Posted:
    """Receives into a buffer by a request that is there before the message."""

    def __init__(self, comm: "MPI.Comm", source: int, buffer: bytearray) -> None:
        self._request = comm.Recv_init(buffer, source, MESSAGE)
        self._request.Start()
        self.filled = self._request.Test  # whether a message has come
        self.empty = self._request.Start  # make room for the next one

    def close(self) -> None:
        """Take back the request."""
        self._request.Cancel()
        self._request.Wait()
        self._request.Free()


class _Probed:
    """Receives into a buffer what is found waiting.

    MPICH 5.0 across nodes (UCX) never completes a request for a message from anyone that has come before it.
    """

    def __init__(self, comm: "MPI.Comm", source: int, buffer: bytearray) -> None:
        self._probe, self._buffer = partial(comm.Improbe, source, MESSAGE), buffer

    def filled(self) -> bool:
        """Whether a message has come."""
        message = self._probe() or self._probe()  # the first one may only fetch it
        if message is None:
            return False
        message.Recv(self._buffer)
        return True

    def empty(self) -> None:
        """Nothing is in the way of the next one."""

    def close(self) -> None:
        """Nothing is to be taken back."""


def _inbox(comm: "MPI.Comm", source: int, buffer: bytearray) -> _Posted | _Probed:
    """How messages from a rank, or from anyone, are received with this MPI."""
    from mpi4py import MPI

    safe = source != MPI.ANY_SOURCE or "Open MPI" in MPI.Get_library_version()
    return (_Posted if safe else _Probed)(comm, source, buffer)


def _fitting(count: int) -> int:
    """How many seconds go along with the header: all or none."""
    return count if 8 * count <= INLINE else 0
