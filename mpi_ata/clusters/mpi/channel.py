"""Messages between manager and workers: a header of 64 bytes, a number for each task, and one array.

What fits is sent with the header; the rest follows in messages of its own and is received blocking, since a
large message that advances only between pauses crawls.  Buffers only, nothing is pickled.
"""

import os
from array import array
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.buffers import NOWHERE, SMALL_BYTES, BufferPool

if TYPE_CHECKING:
    from mpi4py import MPI


Payload = npt.NDArray[Any]

# sender, kind, order, round, tasks, how many numbers follow, bytes of the array, x_slot, result_slot, flags
HEADER = Struct("<2i5q3i4x")
RESULT_FIELDS = Struct("<2iq8x3q8xi4x")  # of these: sender, kind, order, tasks, numbers, bytes, flags
_unpack = HEADER.unpack_from
INLINE = SMALL_BYTES
PIECE = 1 << 30  # counts in MPI are 32-bit integers
MESSAGE, FOLLOWING = 1, 2  # tags
GLANCE = 1000  # polls for the rest of a message between two checks that its sender is alive
EMPTY: Payload = np.empty(0, np.uint8)

# Kinds of messages: plain integers, since an enumeration costs as much as the message.
ORDER = 1  # manager to worker: do this many tasks at a point
STOP = 2  # manager to worker: stop this order
END = 3  # manager to worker: no more orders; and back: the worker has left
READY = 4  # worker to manager: set up
ARRIVAL = 5  # worker to manager: this many tasks, their seconds, the sum of their results
STOPPED = 6  # worker to manager, after STOP: how many tasks were begun and not sent, and their seconds
FAILED = 7  # worker to manager: what went wrong, as text, and how many tasks were begun and not sent
EVALUATE = 9  # manager to worker: evaluate these parts at a point
EVALUATED = 10  # worker to manager: the results of these parts, as an array
FALLBACK = 12  # manager to worker: an exchange is given up; deliver this order with its result, at this x
BROKEN = 13  # worker to manager: the exchange of this order cannot be completed

# Flags of a message.
TOGETHER = 1  # ORDER: deliver all tasks as one arrival
FINAL = 2  # END: no further run follows on these ranks
REACHABLE = 4  # READY: the doorbell was heard
SHARED = 8  # READY: the manager's shared memory is open
GLOBAL_RANDOM = 32  # READY: the untimed task drew from the generators that all code shares
EXCHANGED = 64  # ORDER: x comes by an exchange along the route in this message; ARRIVAL: the result does
BAD_RESULT = 16  # FAILED: no task raised an error, but a result cannot be used


class Message(NamedTuple):
    """One received message."""

    sender: int
    kind: int
    order: int
    round: int
    tasks: int
    x_slot: int  # where in shared memory the point is, if it was not sent along
    result_slot: int  # where in shared memory the result belongs
    flags: int
    seconds: list[float]  # of each task
    payload: Payload
    indices: Sequence[int] = ()  # ORDER: those of its tasks in the sequence that all workers share


class _Sending(NamedTuple):
    """A part of a message on its way."""

    request: "MPI.Request"
    to: int
    part: object  # must live until the request completes


class SenderLostError(Exception):
    """The sender died before all of its message had arrived."""


class Channel:
    """Sends messages to any rank and receives them from `source`; all arrays have the shape of `template`.

    `losses` is called where MPI itself reports dead ranks, and to look for more: it returns all ranks that
    have died so far.  `dead` has those that were noticed already.
    """

    def __init__(
        self,
        comm: "MPI.Comm",
        source: int,
        template: Array,
        losses: Callable[[], set[int]] = set,
        dead: Collection[int] = (),
    ) -> None:
        self._losses, self._dead = losses, dead
        self._comm, self._isend, self._rank = comm, comm.Isend, comm.Get_rank()
        self._shape, self._dtype, self._bytes = template.shape, template.dtype, template.nbytes
        self.buffers = BufferPool(template)  # for arrays too large to come with the header
        self._sending: list[_Sending] = []
        self._abandoned: list[_Sending] = []  # nobody may ever receive these
        self.capacity = HEADER.size + INLINE  # bytes of a header and what is sent with it, at most
        self.buffer = bytearray(self.capacity)  # the next message is received here
        numbers = memoryview(self.buffer)[HEADER.size :]  # of the message in it
        self.seconds, self._indices = numbers.cast("d"), numbers.cast("q")
        self._inbox = _inbox(comm, source, self.buffer)
        self.filled = self._inbox.filled  # returns whether there is a message in the buffer
        self.empty = self._inbox.empty  # lets the next message overwrite the buffer

    def send(
        self,
        to: int,
        kind: int,
        order: int = 0,
        round: int = 0,
        tasks: int = 0,
        flags: int = 0,
        seconds: Sequence[float] = (),
        payload: Payload = EMPTY,
        x_slot: int = NOWHERE,
        result_slot: int = NOWHERE,
        indices: Sequence[int] = (),
    ) -> None:
        """Send a message without waiting; `payload` must not change until it is sent."""
        numbers, code = (indices, "q") if indices else (seconds, "d")
        count, size = len(numbers), payload.nbytes
        fields = self._rank, kind, order, round, tasks, count, size, x_slot, result_slot, flags
        if not is_short(size, count):
            self._send_long(to, HEADER.pack(*fields), array(code, numbers).tobytes(), payload)
            return
        message = _header_and(count, code).pack(*fields, *numbers)
        self.isend(message + payload.tobytes() if size else message, to)

    def _send_long(self, to: int, header: bytes, numbers: bytes, payload: Payload) -> None:
        """Send what does not fit with the header, in pieces."""
        if len(numbers) <= INLINE:
            header, numbers = header + numbers, b""
        self.isend(header, to)
        for part in (numbers, np.ascontiguousarray(payload).reshape(-1).view(np.uint8)):
            for begin in range(0, len(part), PIECE):
                self.isend(part[begin : begin + PIECE], to, FOLLOWING)

    def short(self, kind: int, order: int, round: int, tasks: int, flags: int, data: bytes) -> bytes:
        """Return a message that fits with its header, to be sent to several ranks."""
        fields = self._rank, kind, order, round, tasks, 0, len(data), NOWHERE, NOWHERE, flags
        return HEADER.pack(*fields) + data

    def isend(self, part: bytes | Payload, to: int, tag: int = MESSAGE) -> None:
        """Send a header and the short data that follow it, or what follows those, without waiting."""
        try:
            request = self._isend(part, to, tag)
            if not request.Test():
                self._remember(_Sending(request, to, part))
        except Exception as error:
            self.note_loss(error)

    def isend_all(self, parts: list[bytes], ranks: list[int]) -> None:
        """Send a header and the short data that follow it to each of these ranks, without waiting."""
        isend = self._isend
        for part, to in zip(parts, ranks, strict=True):  # as above, but without a call for each
            try:
                request = isend(part, to, MESSAGE)
                if not request.Test():
                    self._remember(_Sending(request, to, part))
            except Exception as error:
                self.note_loss(error)

    def _remember(self, sending: _Sending) -> None:
        """Keep a part that is on its way."""
        (self._abandoned if sending.to in self._dead else self._sending).append(sending)

    def _sent(self, sending: "_Sending") -> bool:
        """Return whether a message is sent, or nobody is left to receive it."""
        try:
            return sending.request.Test()
        except Exception as error:
            self.note_loss(error)
            return True

    def note_loss(self, error: Exception) -> None:
        """Take note of MPI's error for a dead rank; raise any other one again."""
        from mpi_ata.clusters.mpi.library import is_loss

        if not is_loss(error):
            raise error
        self._losses()

    def sending(self) -> bool:
        """Advance what is being sent and return whether anything is left."""
        if self._sending:
            self._sending = [sending for sending in self._sending if not self._sent(sending)]
        return bool(self._sending)

    def abandon(self, rank: int) -> None:
        """Stop waiting for a rank to receive what was sent to it."""
        self._abandoned += [sending for sending in self._sending if sending.to == rank]
        self._sending = [sending for sending in self._sending if sending.to != rank]

    def flush(self) -> None:
        """Wait until everything is sent."""
        while self.sending():
            os.sched_yield()

    def poll(self) -> Message | None:
        """Return the next message, if there is one."""
        try:
            return self.read() if self.filled() else None
        except Exception as error:
            self.note_loss(error)
            return None

    def read(self) -> Message | None:
        """Return the message in the buffer; None if its sender died before all of it had arrived."""
        buffer = self.buffer
        sender, kind, order, round, tasks, count, size, x_slot, result_slot, flags = _unpack(buffer)
        begin = HEADER.size + 8 * count
        if begin + size <= self.capacity:
            numbers: list[Any] = (self._indices if kind == ORDER else self.seconds)[:count].tolist()
            payload = self._as_array(buffer[begin : begin + size]) if size else EMPTY
        else:
            try:
                numbers, payload = self._following_parts(sender, kind, count, size)
            except SenderLostError:
                self.empty()
                return None
        self.empty()
        fields = sender, kind, order, round, tasks, x_slot, result_slot, flags
        if kind == ORDER:
            return Message(*fields, [], payload, numbers)
        return Message(*fields, numbers, payload)

    def _following_parts(self, sender: int, kind: int, count: int, size: int) -> tuple[list[Any], Payload]:
        """Return the numbers and the array of a message that did not fit with its header."""
        numbers = self._indices if kind == ORDER else self.seconds
        if 8 * count <= INLINE:  # then they came with the header
            found = numbers[:count].tolist()
        else:
            found = self._following(sender, np.empty(count, numbers.format)).tolist()
        return found, self._following(sender, self._buffer_for(size)) if size else EMPTY

    def _as_array(self, data: bytearray) -> Payload:
        if len(data) == self._bytes:
            return np.ndarray(self._shape, self._dtype, data)
        return np.frombuffer(data, np.uint8)

    def _buffer_for(self, size: int) -> Payload:
        if size != self._bytes:
            return np.empty(size, np.uint8)
        return self.buffers.take()

    def _following(self, sender: int, buffer: Payload) -> Payload:
        """Receive into a buffer what did not fit with the header."""
        part = buffer.reshape(-1).view(np.uint8)
        for begin in range(0, len(part), PIECE):
            self._receive(part[begin : begin + PIECE], sender)
        return buffer

    def _receive(self, part: Payload, sender: int) -> None:
        request = self._comm.Irecv(part, sender, FOLLOWING)
        try:
            while not any(request.Test() for _ in range(GLANCE)):
                if sender in self._losses():
                    self._abandoned.append(_Sending(request, sender, part))  # it may still be written into
                    raise SenderLostError
        except SenderLostError:
            raise
        except Exception as error:
            self.note_loss(error)
            raise SenderLostError from None

    def close(self) -> None:
        """Send what is left and cancel the request for a message that will not come."""
        self.flush()
        self._inbox.close()


class _Posted:
    """Receives into a buffer by a request posted before the message comes."""

    def __init__(self, comm: "MPI.Comm", source: int, buffer: bytearray) -> None:
        self._request = comm.Recv_init(buffer, source, MESSAGE)
        self._request.Start()
        self.filled = self._request.Test  # whether a message has come
        self.empty = self._request.Start  # make room for the next one

    def close(self) -> None:
        """Cancel the request."""
        self._request.Cancel()
        self._request.Wait()
        self._request.Free()


class _Probed:
    """Receives into a buffer what a probe finds.

    MPICH 5.0 across nodes (UCX) never completes a receive from any source whose message came before it.
    """

    def __init__(self, comm: "MPI.Comm", source: int, buffer: bytearray) -> None:
        self._probe, self._buffer = partial(comm.Improbe, source, MESSAGE), buffer

    def filled(self) -> bool:
        """Return whether a message has come."""
        message = self._probe() or self._probe()  # the first one may only fetch it
        if message is None:
            return False
        message.Recv(self._buffer)
        return True

    def empty(self) -> None:
        """Do nothing: the next probe needs no preparation."""

    def close(self) -> None:
        """Do nothing: no request is pending."""


def _inbox(comm: "MPI.Comm", source: int, buffer: bytearray) -> _Posted | _Probed:
    """Return how messages from a rank, or from any rank, are received with this MPI."""
    from mpi_ata.clusters.mpi.library import MPI

    safe = source != MPI.ANY_SOURCE or "Open MPI" in MPI.Get_library_version()
    return (_Posted if safe else _Probed)(comm, source, buffer)


def is_short(size: int, count: int) -> bool:
    """Return whether a message with an array of this size and this many numbers fits with its header."""
    return size + 8 * count <= INLINE


@cache
def _header_and(count: int, code: str) -> Struct:
    """Return the format of a header and this many numbers."""
    return Struct(f"{HEADER.format}{count}{code}")
