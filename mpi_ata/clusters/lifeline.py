"""Lifelines: connections between the manager and each worker that break when either process ends.

No MPI reports a dead rank in every case, and most report none.  The kernel closes the connections of a
process at once, however it ends: the manager notices a dead worker within milliseconds, and workers
end with their manager even if a task keeps them busy.  Next to nothing is sent meanwhile, so a network that
fails for some minutes breaks no connection.
"""

import fcntl
import os
import resource
import selectors
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from weakref import WeakSet

from mpi_ata.launch import host_name

ANSWER = 10.0  # seconds within which the other side of a new connection has to answer
LENGTH = 64  # bytes of a worker's first message: its rank, and the token
ACCEPTED, DISMISSED = b"\1", b"\2"
KEEP_ALIVE = 300  # seconds of silence after which the kernel probes: firewalls forget idle connections

_open: WeakSet[socket.socket] = WeakSet()


def _close_in_child() -> None:
    """Close all connections in a forked child; otherwise it would keep them open after its parent's death."""
    for connection in _open:
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)


class Lifelines:
    """The manager's ends of all lifelines; `token` is a secret that only the ranks know."""

    def __init__(self, token: str) -> None:
        _allow_descriptors()
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, socket.socket] = {}  # by rank
        self._listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Accept workers until the listener is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        """Accept one connection if it sends the token; reject it otherwise."""
        with suppress(OSError, ValueError):
            connection.settimeout(ANSWER)
            text = connection.recv(LENGTH, socket.MSG_WAITALL).decode()
            rank, _, token = text.strip().partition(" ")
            if token == self._token and int(rank) not in self._connections:
                self._connections[int(rank)] = prepared(connection)
                connection.sendall(ACCEPTED)
                return
        connection.close()

    def watch(self, ranks: Iterable[int]) -> None:
        """Watch these ranks, which were accepted, from now on; accept no others."""
        self._listener.close()
        for rank in set(self._connections).difference(ranks):
            self._connections.pop(rank).close()
        for rank, connection in self._connections.items():
            self._selector.register(connection, selectors.EVENT_READ, rank)

    def watched(self, rank: int) -> bool:
        """Return whether there is a lifeline to this rank."""
        return rank in self._connections

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
        """Close the connection of a rank that has died; if it is alive, this ends it."""
        if (connection := self._connections.pop(rank, None)) is not None:
            self._selector.unregister(connection)
            connection.close()

    def dismiss(self) -> None:
        """Let all workers leave normally: every rank is alive and can call MPI_Finalize."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.sendall(DISMISSED)
        self.close()

    def hold_until_exit(self) -> None:
        """Let all workers leave when this process has ended."""
        _held.append(self)

    def close(self) -> None:
        """Close all connections; this ends workers that were not dismissed."""
        self._listener.close()
        self._selector.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


_held: list[Lifelines] = []


class Lifeline:
    """A worker's end: when the manager's process ends, the kernel ends this one."""

    def __init__(self, host: str, port: int, token: str, rank: int) -> None:
        self._socket = prepared(socket.socket())
        self._socket.settimeout(ANSWER)
        self.connected = False
        with suppress(OSError):
            self._socket.connect(("127.0.0.1" if host == host_name() else host, port))
            self._socket.sendall(f"{rank} {token}".ljust(LENGTH).encode())
            self.connected = self._socket.recv(1) == ACCEPTED
        if self.connected:
            self._set_dependent(True)
        else:
            self._socket.close()

    def _set_dependent(self, dependent: bool) -> None:
        """Have Linux kill this process when the connection breaks: a task may be too busy to react."""
        if hasattr(fcntl, "F_SETSIG"):
            fcntl.fcntl(self._socket, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self._socket, fcntl.F_SETOWN, os.getpid())
            flags = fcntl.fcntl(self._socket, fcntl.F_GETFL) & ~os.O_ASYNC
            fcntl.fcntl(self._socket, fcntl.F_SETFL, flags | (os.O_ASYNC if dependent else 0))

    def release(self) -> None:
        """Stop depending on the manager."""
        if self.connected:
            self._set_dependent(False)

    def dismissed(self) -> bool:
        """Wait for the manager's permission to leave normally; False if its process has ended instead."""
        if not self.connected:
            return True
        with suppress(OSError), self._socket:
            self._socket.settimeout(None)
            return self._socket.recv(1) == DISMISSED
        return False


def prepared(connection: socket.socket) -> socket.socket:
    """Return a connection that the kernel probes now and then, and that no forked child holds open."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE)
    _open.add(connection)
    return connection


def _allow_descriptors() -> None:
    """Raise the limit on open files to the hard limit: the manager needs one per worker."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
