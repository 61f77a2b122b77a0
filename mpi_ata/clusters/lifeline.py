"""Lifelines: connections between the manager and each worker that break when either process ends.

No MPI reports a dead rank in every case, and most report none.  The kernel closes the connections of a
process however it ends, and at once: the manager learns of a dead worker within milliseconds, and workers
end with their manager even if a task keeps them busy.  Nothing is sent meanwhile, so a network that fails
for some time breaks no connection.
"""

import fcntl
import os
import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

from mpi_ata.launch import host_name

ANSWER = 10.0  # seconds within which the other side of a new connection has to answer
LENGTH = 64  # bytes with which a worker introduces itself: its rank, and a word that only ranks know
ACCEPTED, DISMISSED = b"\1", b"\2"


class Lifelines:
    """The manager's ends of all lifelines; `token` is a word that only ranks know."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, socket.socket] = {}  # by rank
        self._listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self._listener.settimeout(ANSWER)
        self.port: int = self._listener.getsockname()[1]

    def accept(self, count: int) -> None:
        """Accept the connections of so many workers, and no more from then on."""
        with suppress(OSError):  # a worker without a lifeline is watched by its deadlines alone
            while len(self._connections) < count:
                self._accept(*self._listener.accept())
        self._listener.close()

    def _accept(self, connection: socket.socket, _: object) -> None:
        connection.settimeout(ANSWER)
        text = connection.recv(LENGTH, socket.MSG_WAITALL).decode(errors="replace")
        rank, _, token = text.strip().partition(" ")
        if token != self._token:
            connection.close()
            return
        connection.sendall(ACCEPTED)
        self._connections[int(rank)] = connection
        self._selector.register(connection, selectors.EVENT_READ, int(rank))

    def fileno(self) -> int:
        """Return a descriptor that is readable as soon as a connection has broken."""
        number: int = self._selector.fileno()
        return number

    def broken(self) -> Iterator[int]:
        """Yield the ranks whose connections have broken, each once."""
        for key, _ in self._selector.select(0):
            self.cut(key.data)
            yield key.data

    def cut(self, rank: int) -> None:
        """Close the connection of a rank that has died; one that has not is ended by that."""
        if (connection := self._connections.pop(rank, None)) is not None:
            self._selector.unregister(connection)
            connection.close()

    def dismiss(self) -> None:
        """Let all workers leave in order: every rank is there for MPI_Finalize."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.sendall(DISMISSED)
        self.close()

    def hold_until_exit(self) -> None:
        """Let all workers leave when this process has ended."""
        _held.append(self)

    def close(self) -> None:
        """Close all connections: workers that were not dismissed are ended by that."""
        for rank in list(self._connections):
            self.cut(rank)
        self._listener.close()
        self._selector.close()


_held: list[Lifelines] = []


class Lifeline:
    """A worker's end: when the manager's process ends, the kernel ends this one."""

    def __init__(self, host: str, port: int, token: str, rank: int) -> None:
        self._socket = socket.socket()
        self._socket.settimeout(ANSWER)
        self.connected = False
        with suppress(OSError):
            self._socket.connect(("127.0.0.1" if host == host_name() else host, port))
            self._socket.sendall(f"{rank} {token}".ljust(LENGTH).encode())
            self.connected = True
        os.register_at_fork(after_in_child=self._socket.close)  # or it would outlive this process

    def hold(self) -> None:
        """Wait until the manager has accepted the connection, then depend on it."""
        with suppress(OSError):
            if self.connected and self._socket.recv(1) == ACCEPTED and hasattr(fcntl, "F_SETSIG"):
                self._depend()

    def _depend(self) -> None:
        """Have Linux kill this process when the connection breaks: a task may be too busy to react."""
        fcntl.fcntl(self._socket, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self._socket, fcntl.F_SETOWN, os.getpid())
        self._set_dependent(True)

    def _set_dependent(self, dependent: bool) -> None:
        flags = fcntl.fcntl(self._socket, fcntl.F_GETFL) & ~os.O_ASYNC
        fcntl.fcntl(self._socket, fcntl.F_SETFL, flags | (os.O_ASYNC if dependent else 0))

    def release(self) -> None:
        """Depend on the manager no longer."""
        self._set_dependent(False)

    def dismissed(self) -> bool:
        """Wait for the manager's permission to leave in order; False if its process has ended instead."""
        with suppress(OSError):
            self._socket.settimeout(None)
            return not self.connected or self._socket.recv(1) == DISMISSED
        return False
