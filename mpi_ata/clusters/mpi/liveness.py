"""Who is alive and awake: lifelines, which break when a process ends, and doorbells, which wake a rank.

No MPI reports a dead rank in every case, and most report none.  The kernel closes the connections of a
process at once, however it ends: the manager notices a dead worker within milliseconds, and workers
end with their manager even if a task keeps them busy.  Next to nothing is sent meanwhile, so a network that
fails for some minutes breaks no connection.
"""

import fcntl
import math
import mmap
import os
import resource
import secrets
import select
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar

from mpi_ata.clusters.mpi.buffers import shared_file
from mpi_ata.clusters.mpi.introductions import (
    ANSWER_BYTES,
    Address,
    Introduction,
    Listener,
    bound_socket,
    closed_in_children,
    connect,
    datagram_address,
    own_address,
)
from mpi_ata.layout import MANAGER

DISMISSED = b"\2"
KEEP_ALIVE_SECONDS = 300  # of silence, after which the kernel probes: firewalls forget idle connections


class Lifelines:
    """The manager's ends of the lifelines of so many workers; `secret` is what only the ranks know."""

    def __init__(self, secret: bytes, alone: bool, workers: int) -> None:
        _allow_descriptors()
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, socket.socket] = {}  # by rank
        self._listener = Listener(alone, workers)
        self.port = self._listener.port

    def admit(self, seconds: float) -> None:
        """Wait for workers to connect, at most this long, and accept those that have."""
        self._listener.wait(seconds)
        for who, connection in self._listener.accepted(MANAGER, self._secret):
            with suppress(OSError):
                connection.send(who.answer(self._secret))
                self._connections.setdefault(who.sender, prepared(connection))

    def watch(self, ranks: Iterable[int]) -> None:
        """Watch these ranks, which were accepted, from now on; accept no others."""
        self._listener.close()
        for rank in set(self._connections).difference(ranks):
            self._connections.pop(rank).close()
        for rank, connection in self._connections.items():
            self._selector.register(connection, selectors.EVENT_READ, rank)

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

    def __init__(self, address: Address, secret: bytes, rank: int) -> None:
        self.connected = False
        try:
            self._socket = connect(address)
        except OSError:
            return
        with suppress(OSError):
            self.connected = self._is_accepted(Introduction.new(rank, MANAGER), secret)
        if self.connected:
            prepared(self._socket)
            self._set_dependent(True)
        else:
            self._socket.close()

    def _is_accepted(self, introduction: Introduction, secret: bytes) -> bool:
        """Introduce this rank, and return whether it is the manager that accepts it."""
        self._socket.sendall(introduction.signed(secret))
        answer = b""
        while len(answer) < ANSWER_BYTES and (more := self._socket.recv(ANSWER_BYTES - len(answer))):
            answer += more
        return introduction.is_answered(answer, secret)

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
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
    return closed_in_children(connection)


def _allow_descriptors() -> None:
    """Raise the limit on open files to the hard limit: the manager needs one per worker."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


Found = TypeVar("Found")
SPIN_SECONDS = 50e-6  # of polling without a pause, which costs less than falling asleep and waking up
LONG_SPIN_SECONDS = 1e-3  # the same, if the latest wait was shorter than that
NAP_SECONDS = 0.05  # the longest sleep of a reachable rank
HEARING_SECONDS = 0.2  # for which a rank listens, to find out whether it is reachable
PAUSE_SECONDS = 0.01  # the longest sleep of an unreachable one: less than 1 % of a core
RINGS = 256  # that are read at once: others may ring without end
NEAR = -1  # all ranks on this node: if one is heard, all are


class Doorbell:
    """Two sockets that wake this rank: one within the node, one across nodes."""

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        """Take which rank this is, and where each is: workers are rung by the manager, it by all of them."""
        ringing = {MANAGER} if rank != MANAGER else set(range(len(hosts))) - {MANAGER}
        self._rank = rank
        self._alone = len(set(hosts)) == 1  # whether all ranks are on this node
        self.address = own_address(self._alone)
        # Ranks that will ring, but have not been heard yet.
        self._silent = {NEAR if hosts[other] == hosts[rank] else other for other in ringing}
        self._spin, self._long_spin = SPIN_SECONDS, LONG_SPIN_SECONDS
        if rank == MANAGER and hosts.count(hosts[MANAGER]) > (os.cpu_count() or 1):
            self._long_spin = SPIN_SECONDS  # a worker makes better use of its core
        self._flags: mmap.mmap | None = None  # one byte per rank: whether it sleeps
        self.name = f"mpi_ata-{os.getpid()}-{secrets.token_hex(8)}"
        self._near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near.bind(_path(self.name))
        self._near.setblocking(False)
        self._far = None if self._alone else bound_socket(socket.SOCK_DGRAM, alone=False)
        self.port: int = self._far.getsockname()[1] if self._far else 0
        self._waking: list[socket.socket | int] = [self._near, *([self._far] if self._far else [])]
        self._on_wake: Callable[[], object] | None = None

    @property
    def heard(self) -> bool:
        """Whether every rank that will ring has been heard at least once."""
        return not self._silent

    def share_flags(self, name: str, ranks: int) -> None:
        """Share with the ranks on this node who sleeps: a rank that is awake need not be rung.

        The manager creates the file, and all others open it.
        """
        with suppress(OSError, ValueError):
            file = shared_file(name, create=self._rank == MANAGER)
            with closing(os.fdopen(file, "r+b", buffering=0)) as flags:
                if self._rank == MANAGER:
                    flags.write(b"\1" * ranks)
                self._flags = mmap.mmap(file, ranks)

    def all_awake(self) -> bool:
        """Return whether all ranks are on this node, and none of them sleeps."""
        return self._alone and self._flags is not None and self._flags.find(b"\1", 0) < 0

    def ringer(self, name: str, address: Address | None, rank: int = MANAGER) -> Callable[[], None]:
        """Return a function that rings another rank, by the name or the address of its doorbell."""
        if address is None or self._far is None:
            return partial(self._ring_near, _path(name), rank)
        try:
            host = datagram_address(address.host, self._far.family)
            return partial(self._ring, self._far, (host, address.port))
        except OSError:
            return lambda: None  # it polls anyway

    def _ring_near(self, address: str, rank: int) -> None:
        if self._flags is None or self._flags[rank]:
            self._ring(self._near, address)

    def _ring(self, bell: socket.socket, address: str | tuple[str, int]) -> None:
        with suppress(OSError):  # a full queue means that it has been rung
            bell.sendto(self._rank.to_bytes(4, "little"), address)

    def watch(self, descriptor: int, on_wake: Callable[[], object]) -> None:
        """Let this descriptor too wake the rank, and call a function when it does."""
        self._waking.append(descriptor)
        self._on_wake = on_wake

    def sleep(self, seconds: float) -> bool:
        """Sleep until somebody rings, at most this long, and return whether somebody did."""
        ready, _, _ = select.select(self._waking, [], [], seconds)  # poll() counts whole milliseconds
        for bell in ready:
            if isinstance(bell, socket.socket):
                self._read(bell)
            elif self._on_wake is not None:
                self._on_wake()
        return bool(ready)

    def _read(self, bell: socket.socket) -> None:
        """Note who has rung."""
        with suppress(BlockingIOError):
            for _ in range(RINGS):
                self._silent.discard(int.from_bytes(bell.recv(4), "little"))
                self._silent -= {NEAR} if bell is self._near else set()

    def wait(self, look: Callable[[], Found | None], until: float = math.inf) -> Found | None:
        """Return what `look` finds, as soon as it finds something; None from the time `until` on."""
        began = now = time.perf_counter()
        while now - began < self._spin and now < until:
            if (found := look()) is not None:
                self._spin = self._long_spin
                return found
            os.sched_yield()
            now = time.perf_counter()
        found = self.sleep_until(look, until)
        self._spin = self._long_spin if time.perf_counter() - began < LONG_SPIN_SECONDS else SPIN_SECONDS
        return found

    def sleep_until(self, look: Callable[[], Found | None], until: float = math.inf) -> Found | None:
        """Return what `look` finds, or None from the time `until` on; sleep at once, for longer waits."""
        pause = SPIN_SECONDS if self._silent else NAP_SECONDS
        while True:
            self._flag(1)
            found = look()  # a message sent before the flag was seen rings no bell
            now = time.perf_counter()
            if found is None and now < until:
                rung = self.sleep(min(pause, until - now))
                # On a network the bell may overtake the message that it announces.
                pause = (
                    SPIN_SECONDS if rung else min(2 * pause, PAUSE_SECONDS if self._silent else NAP_SECONDS)
                )
            self._flag(0)
            if found is not None or now >= until:
                return found

    def _flag(self, asleep: int) -> None:
        if self._flags is not None:
            self._flags[self._rank] = asleep

    def close(self) -> None:
        """Close the sockets and remove what is left in the file system."""
        self._near.close()
        if self._far is not None:
            self._far.close()
        if not _path(self.name).startswith("\0"):
            os.unlink(_path(self.name))


def _path(name: str) -> str:
    """Return the address of a socket within the node; on Linux it leaves nothing in the file system."""
    return f"\0{name}" if sys.platform == "linux" else f"{tempfile.gettempdir()}/{name}"
