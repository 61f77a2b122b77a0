"""Messages between manager and workers: a header of 64 bytes, a number for each task, and one array.

What fits is sent with the header; the rest follows in messages of its own.  While any is on its way, whoever
waits should poll without pauses, between which a large message crawls.  Buffers only.
"""

import os
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.buffers import NOWHERE, SMALL_BYTES, BufferPool

if TYPE_CHECKING:
    from mpi4py import MPI


Payload = npt.NDArray[Any]

# sender, kind, order, round, tasks, numbers that follow, bytes of the array, x_slot, result_slot, flags, job
HEADER = Struct("<2i5q4i")
RESULT_FIELDS = Struct("<2iq8x3q8xi4x")  # of these: sender, kind, order, tasks, numbers, bytes, flags
_unpack = HEADER.unpack_from
INLINE = SMALL_BYTES
PIECE = 1 << 30  # counts in MPI are 32-bit integers
MESSAGE, FOLLOWING, BEGIN = 1, 2, 3  # tags
HURRY_SECONDS = 1.0  # after a header, for which its receiver polls for the rest without a pause
HURRY_BYTES = 1e7  # and one second more for each so many
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
NO_EXCHANGE = 14  # manager to worker: there will be no exchange from now on; close its connections
OPEN = 15  # manager to worker: set up this job, one of several that share the ranks
CLOSE = 16  # manager to worker: this job has ended

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
    job: int = 0  # of several that share the ranks


class _Sending(NamedTuple):
    """A part of a message on its way."""

    request: "MPI.Request"
    to: int
    part: object  # must live until the request completes


@dataclass(eq=False, slots=True)
class _Incoming:
    """A message whose header has come, and the rest perhaps not."""

    message: Message  # with arrays in place of long lists of numbers
    rest: deque[Any]  # requests, in order
    until: float  # when there is no hurry any more

    def whole(self) -> Message:
        """Return the message, now that all of it has come."""
        seconds, indices = np.asarray(self.message.seconds), np.asarray(self.message.indices, np.int64)
        return self.message._replace(seconds=seconds.tolist(), indices=indices.tolist())


class Channel:
    """Sends messages to any rank and receives them from `source`; all arrays of a job are like its template.

    `on_loss` is called where MPI itself reports a dead rank.  `dead` has those that were noticed already.
    """

    def __init__(
        self,
        comm: "MPI.Comm",
        source: int,
        template: Array | None = None,
        on_loss: Callable[[], object] = set,
        dead: Collection[int] = (),
    ) -> None:
        self._on_loss, self._dead = on_loss, dead
        self._comm, self._isend, self._rank = comm, comm.Isend, comm.Get_rank()
        self.buffers: dict[int, BufferPool] = {}  # by job: for arrays too large to come with the header
        if template is not None:
            self.buffers[0] = BufferPool(template)
        self._sending: list[_Sending] = []
        # By sender: what has not come whole, and what follows.
        self.incoming: dict[int, deque[_Incoming]] = {}
        self._abandoned: list[_Sending | _Incoming] = []  # nobody may ever receive or send the rest of these
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
        job: int = 0,
    ) -> None:
        """Send a message without waiting; `payload` must not change until it is sent."""
        numbers, code = (indices, "q") if indices else (seconds, "d")
        count, size = len(numbers), payload.nbytes
        fields = self._rank, kind, order, round, tasks, count, size, x_slot, result_slot, flags, job
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
        fields = self._rank, kind, order, round, tasks, 0, len(data), NOWHERE, NOWHERE, flags, 0
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
        self._on_loss()

    def sending(self) -> bool:
        """Advance what is being sent and return whether anything is left."""
        if self._sending:
            self._sending = [sending for sending in self._sending if not self._sent(sending)]
        return bool(self._sending)

    def abandon(self, rank: int) -> None:
        """Stop waiting for a rank to receive what was sent to it."""
        self._abandoned += [sending for sending in self._sending if sending.to == rank]
        self._sending = [sending for sending in self._sending if sending.to != rank]

    def forget(self, rank: int) -> None:
        """Stop waiting for the rest of what a rank that has died began to send; it may still be written."""
        self._abandoned += self.incoming.pop(rank, ())

    def flush(self) -> None:
        """Wait until everything is sent."""
        while self.sending():
            os.sched_yield()

    def poll(self) -> Message | None:
        """Return the next message, if there is one; wait for the rest of it."""
        try:
            message = self.read() if self.filled() else None
        except Exception as error:
            self.note_loss(error)
            return None
        while self.incoming and message is None:
            message = self.completed()
        return message

    def read(self) -> Message | None:
        """Return the message in the buffer; None if the rest of it, or of one before it, is still to come."""
        buffer, rest = self.buffer, deque[Any]()
        sender, kind, order, round, tasks, count, size, x_slot, result_slot, flags, job = _unpack(buffer)
        known, begin = self._indices if kind == ORDER else self.seconds, HEADER.size + 8 * count
        numbers: Any = known[:count].tolist() if 8 * count <= INLINE else np.empty(count, known.format)
        if begin + size <= self.capacity:
            payload = self._as_array(buffer[begin : begin + size], job) if size else EMPTY
        else:
            payload = self._buffer_for(size, job) if size else EMPTY
            rest = self._receive(sender, [payload] if isinstance(numbers, list) else [numbers, payload])
        self.empty()
        seconds, indices = ([], numbers) if kind == ORDER else (numbers, ())
        fields = sender, kind, order, round, tasks, x_slot, result_slot, flags
        message = Message(*fields, seconds, payload, indices, job)
        if not rest and sender not in self.incoming:
            return message
        until = perf_counter() + HURRY_SECONDS + size / HURRY_BYTES
        self.incoming.setdefault(sender, deque()).append(_Incoming(message, rest, until))
        return None

    def _receive(self, sender: int, parts: Sequence[Payload]) -> deque[Any]:
        """Begin to receive what did not fit with a header, in pieces."""
        requests = deque[Any]()
        for part in parts:
            data = part.reshape(-1).view(np.uint8)
            for begin in range(0, len(data), PIECE):
                requests.append(self._comm.Irecv(data[begin : begin + PIECE], sender, FOLLOWING))
        return requests

    def completed(self) -> Message | None:
        """Return a message that has come whole since its header was read, if there is one."""
        for sender, entries in list(self.incoming.items()):
            if self._has_come(sender, entries[0].rest):
                message = entries.popleft().whole()
                if not entries:
                    del self.incoming[sender]
                return message
        return None

    def _has_come(self, sender: int, rest: deque[Any]) -> bool:
        """Return whether the rest of a message is there; if its sender has died, it never will be."""
        try:
            while rest and rest[0].Test():
                rest.popleft()
        except Exception as error:
            self.forget(sender)  # a request that has failed counts as complete from now on
            self.note_loss(error)
            return False
        return not rest

    def receiving(self) -> bool:
        """Return whether the rest of a message should come any moment."""
        return bool(self.incoming) and any(
            perf_counter() < entries[0].until for entries in self.incoming.values()
        )

    def _as_array(self, data: bytearray, job: int) -> Payload:
        like = self.buffers.get(job)
        if like is not None and len(data) == like.bytes:
            return np.ndarray(like.shape, like.dtype, data)
        return np.frombuffer(data, np.uint8)

    def _buffer_for(self, size: int, job: int) -> Payload:
        like = self.buffers.get(job)
        return np.empty(size, np.uint8) if like is None or size != like.bytes else like.take()

    def close(self) -> None:
        """Send what is left and cancel the request for a message that will not come."""
        self.flush()
        try:
            self._inbox.close()
        except Exception as error:  # a rank whose death MPI has just noticed
            self.note_loss(error)


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


class _PostedEach:
    """Receives by one request per sender, and copies what comes into a buffer.

    MPICH 5.0 across nodes (UCX) never completes a receive from any source whose message came before it, and
    some networks lose messages that are probed for.
    """

    def __init__(self, comm: "MPI.Comm", sources: Sequence[int], buffer: bytearray) -> None:
        self._buffer, self._buffers = buffer, [bytearray(len(buffer)) for _ in sources]
        pairs = zip(self._buffers, sources, strict=True)
        self._requests = [comm.Recv_init(own, source, MESSAGE) for own, source in pairs]
        self._found: list[int] = []  # requests whose messages have come
        for request in self._requests:
            request.Start()

    def filled(self) -> bool:
        """Return whether a message has come."""
        if not self._found:
            self._found = self._requests[0].Testsome(self._requests) or []
            if not self._found:
                return False
        index = self._found.pop()
        self._buffer[:] = self._buffers[index]
        self._requests[index].Start()
        return True

    def empty(self) -> None:
        """Do nothing: the message was copied."""

    def close(self) -> None:
        """Cancel the requests."""
        for request in self._requests:
            request.Cancel()
            request.Wait()
            request.Free()


def _inbox(comm: "MPI.Comm", source: int, buffer: bytearray) -> _Posted | _PostedEach:
    """Return how messages from a rank, or from all others, are received with this MPI."""
    from mpi_ata.clusters.mpi.library import MPI

    if source != MPI.ANY_SOURCE or "Open MPI" in MPI.Get_library_version():
        return _Posted(comm, source, buffer)
    return _PostedEach(comm, [rank for rank in range(comm.Get_size()) if rank != comm.Get_rank()], buffer)


def is_short(size: int, count: int) -> bool:
    """Return whether a message with an array of this size and this many numbers fits with its header."""
    return size + 8 * count <= INLINE


@cache
def _header_and(count: int, code: str) -> Struct:
    """Return the format of a header and this many numbers."""
    return Struct(f"{HEADER.format}{count}{code}")
