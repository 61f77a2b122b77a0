"""TCP connections between neighbours of a chain, opened when they are first needed.

Not by MPI, since some libraries carry only one direction of a connection at a time, and since the kernel
closes a connection as soon as either process has ended: nobody waits for a dead neighbour.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from mpi_ata.clusters.mpi.liveness import prepared
from mpi_ata.launch import host_name

GLANCE_SECONDS = 0.02  # between two looks at other messages, while nothing can be sent or received
ANSWER_SECONDS = 10.0  # within which a neighbour has to accept a connection
INTRODUCTION_SECONDS = 1.0  # and within which one that connects has to say who it is
INTRODUCTION_BYTES = 96  # of the first message: rank, generation, token

Idle = Callable[[float], None]  # called with the seconds for which nothing could be sent or received


class LinkBrokenError(Exception):
    """A neighbour has closed the connection, cannot be reached, or is not waited for any more."""


class Address(NamedTuple):
    """Where a rank accepts connections."""

    host: str
    port: int


class Links:
    """Connections to and from other ranks; `token` is a secret that only the ranks know.

    Those of an earlier generation are closed when a new one begins, on both sides, whatever was left in them.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._rank, self._addresses, self._token = 0, list[Address](), ""
        self._generation = 0
        self._outgoing: dict[int, socket.socket] = {}  # by rank
        self._incoming: dict[int, socket.socket] = {}

    def meet(self, rank: int, addresses: Sequence[Address], token: str) -> None:
        """Set which rank this is, and where the others are."""
        self._rank, self._addresses, self._token = rank, list(addresses), token

    def renew(self, generation: int) -> None:
        """Begin a generation, unless it has begun."""
        if generation != self._generation:
            self.disconnect()
            self._generation = generation

    def send(self, to: int, data: memoryview, idle: Idle) -> None:
        """Send all of it; `idle` is called while that is not possible, and may raise an error."""
        self._transfer(self.connect(to), data, _send, select.POLLOUT, idle)

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
            if _is_ready(self._listener, select.POLLIN):
                self._accept()
            else:
                idle(time.perf_counter() - began)
        return self._incoming[rank]

    def connect(self, to: int) -> socket.socket:
        """Return the connection to a rank, opened if need be."""
        if to in self._outgoing:
            return self._outgoing[to]
        host, port = self._addresses[to]
        near = host == host_name()
        try:
            link = socket.create_connection(("127.0.0.1" if near else host, port), ANSWER_SECONDS)
            words = f"{self._rank} {self._generation} {self._token}"
            link.sendall(words.ljust(INTRODUCTION_BYTES).encode())
        except OSError as error:
            raise LinkBrokenError(f"rank {to} on {host}: {error}") from None
        self._outgoing[to] = _prepared(link)
        return link

    def _accept(self) -> None:
        """Accept a connection; one that does not know the token is closed."""
        with suppress(OSError, ValueError):
            link, _ = self._listener.accept()
            link.settimeout(INTRODUCTION_SECONDS)
            words = link.recv(INTRODUCTION_BYTES, socket.MSG_WAITALL).decode()
            rank, generation, token = words.split()
            if token == self._token and int(generation) == self._generation:
                self._incoming[int(rank)] = _prepared(link)
            else:
                link.close()

    def disconnect(self) -> None:
        """Close all connections: neighbours that wait at the other end notice it at once."""
        for link in (*self._outgoing.values(), *self._incoming.values()):
            link.close()
        self._outgoing.clear()
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
