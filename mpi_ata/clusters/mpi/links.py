"""TCP connections between neighbours of a chain, opened when they are first needed.

Not by MPI, since some libraries carry only one direction of a connection at a time, and since the kernel
closes a connection as soon as either process has ended: nobody waits for a dead neighbour.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence

from mpi_ata.clusters.mpi.introductions import ANSWER_BYTES, Address, Introduction, Listener, connect
from mpi_ata.clusters.mpi.liveness import prepared

GLANCE_SECONDS = 0.02  # between two looks at other messages, while nothing can be sent or received

Idle = Callable[[float], None]  # called with the seconds for which nothing could be sent or received


class LinkBrokenError(Exception):
    """A neighbour has closed the connection, cannot be reached, or is not waited for any more."""


class Links:
    """Connections to and from other ranks.

    Those of an earlier generation are closed when a new one begins, on both sides, whatever was left in them.
    """

    def __init__(self, alone: bool) -> None:
        self._listener = Listener(alone)
        self.port = self._listener.port
        self._rank, self._addresses, self._secret = 0, list[Address](), b""
        self._generation = 0
        self._outgoing: dict[int, socket.socket] = {}  # by rank
        self._unanswered: dict[int, Introduction] = {}  # to those of them that have not accepted yet
        self._incoming: dict[int, socket.socket] = {}

    def meet(self, rank: int, addresses: Sequence[Address], secret: bytes) -> None:
        """Set which rank this is, where the others are, and the secret that only the ranks know."""
        self._rank, self._addresses, self._secret = rank, list(addresses), secret

    def renew(self, generation: int) -> None:
        """Begin a generation, unless it has begun."""
        if generation != self._generation:
            self.disconnect()
            self._generation = generation

    def send(self, to: int, data: memoryview, idle: Idle) -> None:
        """Send all of it; `idle` is called while that is not possible, and may raise an error."""
        link = self.connect(to)
        if to in self._unanswered:  # it might be somebody else's by now
            answer = bytearray(ANSWER_BYTES)
            self._transfer(link, memoryview(answer), _receive, select.POLLIN, idle)
            if not self._unanswered.pop(to).is_answered(bytes(answer), self._secret):
                raise LinkBrokenError(f"it is not rank {to} that answers")
        self._transfer(link, data, _send, select.POLLOUT, idle)

    def receive(self, sender: int, data: memoryview, idle: Idle) -> None:
        """Fill all of it; `idle` is called while nothing comes, and may raise an error."""
        self._transfer(self._accepted(sender, idle), data, _receive, select.POLLIN, idle)

    def _transfer(
        self,
        link: socket.socket,
        data: memoryview,
        move: Callable[[socket.socket, memoryview], int],
        event: int,
        idle: Idle,
    ) -> None:
        latest = time.perf_counter()
        while data:
            if moved := move(link, data):
                data, latest = data[moved:], time.perf_counter()
            elif not _is_ready(link, event):
                idle(time.perf_counter() - latest)

    def _accepted(self, rank: int, idle: Idle) -> socket.socket:
        """Return the connection from a rank, which opens it sooner or later."""
        began = time.perf_counter()
        while rank not in self._incoming:
            self._listener.wait(GLANCE_SECONDS)
            self._accept()
            idle(time.perf_counter() - began)
        return self._incoming[rank]

    def connect(self, to: int) -> socket.socket:
        """Return the connection to a rank, opened if need be."""
        if to in self._outgoing:
            return self._outgoing[to]
        introduction = Introduction.new(self._rank, to, self._generation)
        try:
            link = connect(self._addresses[to])
            link.sendall(introduction.signed(self._secret))
        except OSError as error:
            raise LinkBrokenError(f"rank {to} on {self._addresses[to].host}: {error}") from None
        self._outgoing[to], self._unanswered[to] = _prepared(link), introduction
        return link

    def _accept(self) -> None:
        """Accept connections of this generation; of each rank, the first one counts."""
        for who, link in self._listener.accepted(self._rank, self._secret):
            if who.generation == self._generation and who.sender not in self._incoming:
                self._incoming[who.sender] = _prepared(link)
                _send(link, memoryview(who.answer(self._secret)))
            else:
                link.close()

    def disconnect(self) -> None:
        """Close all connections: neighbours that wait at the other end notice it at once."""
        for link in (*self._outgoing.values(), *self._incoming.values()):
            link.close()
        self._outgoing.clear()
        self._unanswered.clear()
        self._incoming.clear()

    def close(self) -> None:
        """Close all connections for good."""
        self.disconnect()
        self._listener.close()


def _prepared(link: socket.socket) -> socket.socket:
    """Return a connection that sends at once and never waits."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setblocking(False)
    return prepared(link)


def _send(link: socket.socket, data: memoryview) -> int:
    """Send what can be sent now, and return how many bytes that was."""
    try:
        return link.send(data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise LinkBrokenError(str(error)) from None


def _receive(link: socket.socket, data: memoryview) -> int:
    """Receive what is there now, and return how many bytes that was."""
    try:
        count = link.recv_into(data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise LinkBrokenError(str(error)) from None
    if not count:
        raise LinkBrokenError("a neighbour has closed the connection")
    return count


def _is_ready(link: socket.socket, event: int) -> bool:
    """Wait a short time, and return whether something can be sent or received."""
    poll = select.poll()  # which has no limit on descriptors
    poll.register(link, event)
    return bool(poll.poll(1e3 * GLANCE_SECONDS))
