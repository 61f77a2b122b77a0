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

from mpi_ata.clusters.lifeline import prepared
from mpi_ata.launch import host_name

GLANCE = 0.02  # seconds between two looks at other messages, while nothing can be sent or received
ANSWER = 10.0  # seconds within which a neighbour has to accept a connection
LENGTH = 96  # bytes of the first message: rank, generation, token


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
        link, latest = self.connect(to), time.perf_counter()
        while data:
            try:
                data, latest = data[link.send(data) :], time.perf_counter()
            except BlockingIOError:
                if not select.select([], [link], [], GLANCE)[1]:
                    idle(time.perf_counter() - latest)
            except OSError as error:
                raise LinkBrokenError(str(error)) from None

    def receive(self, sender: int, data: memoryview, idle: Idle) -> None:
        """Fill all of it; `idle` is called while nothing comes, and may raise an error."""
        latest = time.perf_counter()
        while (link := self._incoming.get(sender)) is None:
            self._accept(idle, latest)
        while data:
            try:
                count, latest = link.recv_into(data), time.perf_counter()
            except BlockingIOError:
                if not select.select([link], [], [], GLANCE)[0]:
                    idle(time.perf_counter() - latest)
                continue
            except OSError as error:
                raise LinkBrokenError(str(error)) from None
            if not count:
                raise LinkBrokenError(f"rank {sender} has closed the connection")
            data = data[count:]

    def connect(self, to: int) -> socket.socket:
        """Return the connection to a rank, opened if need be."""
        if to in self._outgoing:
            return self._outgoing[to]
        host, port = self._addresses[to]
        near = host == host_name()
        try:
            link = socket.create_connection(("127.0.0.1" if near else host, port), ANSWER)
            link.sendall(f"{self._rank} {self._generation} {self._token}".ljust(LENGTH).encode())
        except OSError as error:
            raise LinkBrokenError(f"rank {to} on {host}: {error}") from None
        self._outgoing[to] = _prepared(link)
        return link

    def _accept(self, idle: Idle, since: float) -> None:
        """Accept the next connection, if one comes; one that does not know the token is closed."""
        if not select.select([self._listener], [], [], GLANCE)[0]:
            idle(time.perf_counter() - since)
            return
        with suppress(OSError, ValueError):
            link, _ = self._listener.accept()
            link.settimeout(ANSWER)
            rank, generation, token = link.recv(LENGTH, socket.MSG_WAITALL).decode().split()
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
