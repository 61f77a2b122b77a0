"""Waiting without burning a core: a datagram wakes a sleeping rank, MPI carries the data.

Only latency depends on the bell: a sleeping rank polls for messages every 50 ms anyway, and one that is
unreachable every few milliseconds.
"""

import math
import mmap
import os
import secrets
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER

Found = TypeVar("Found")
SPIN = 50e-6  # seconds of polling without a pause, which costs less than falling asleep and waking up
LONG_SPIN = 1e-3  # the same, if the latest wait was shorter than that
NAP = 0.05  # the longest sleep of a reachable rank
HEARING = 0.2  # seconds for which a rank listens, to find out whether it is reachable
PAUSE = 0.01  # the longest sleep of an unreachable one: less than 1 % of a core
NEAR = -1  # all ranks on this node: if one is heard, all are


class Doorbell:
    """Two sockets that wake this rank: one within the node, one across nodes."""

    def __init__(self) -> None:
        self._rank = MANAGER
        self._silent = {MANAGER}  # ranks that will ring, but have not been heard yet
        self._spin, self._long_spin = SPIN, LONG_SPIN
        self._alone = False  # whether all ranks are on this node
        self._flags: mmap.mmap | None = None  # one byte per rank: whether it sleeps
        self.name = f"mpi_ata-{os.getpid()}-{secrets.token_hex(8)}"
        self._near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near.bind(_path(self.name))
        self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.bind(("", 0))
        self.port: int = self._far.getsockname()[1]
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._waking: list[socket.socket | int] = [self._near, self._far]
        self._on_wake: Callable[[], object] | None = None

    @property
    def heard(self) -> bool:
        """Whether every rank that will ring has been heard at least once."""
        return not self._silent

    def expect(self, rank: int, hosts: list[str]) -> None:
        """Set which rank this is and who will ring it: the manager a worker, all workers the manager."""
        ringing = {MANAGER} if rank != MANAGER else set(range(len(hosts))) - {MANAGER}
        self._rank = rank
        if rank == MANAGER and hosts.count(hosts[MANAGER]) > (os.cpu_count() or 1):
            self._long_spin = SPIN  # a worker makes better use of its core
        self._alone = len(set(hosts)) == 1
        self._silent = {NEAR if hosts[other] == hosts[rank] else other for other in ringing}

    def share_flags(self, name: str, ranks: int) -> None:
        """Share with the ranks on this node who sleeps: a rank that is awake need not be rung."""
        with (
            suppress(OSError, ValueError),
            open(_flags_path(name), "w+b" if self._rank == MANAGER else "r+b") as file,
        ):
            if self._rank == MANAGER:
                file.write(b"\1" * ranks)
                file.flush()
            self._flags = mmap.mmap(file.fileno(), ranks)

    def all_awake(self) -> bool:
        """Return whether all ranks are on this node, and none of them sleeps."""
        return self._alone and self._flags is not None and self._flags.find(b"\1", 0) < 0

    def unlink_flags(self) -> None:
        """Remove the file of flags, now that everyone has opened it: a kill leaves nothing behind."""
        Path(_flags_path(self.name)).unlink(missing_ok=True)

    def ringer(self, host: str, name: str, port: int, rank: int = MANAGER) -> Callable[[], None]:
        """Return a function that rings another rank, given its host and the name and port of its doorbell."""
        if host == host_name():
            return partial(self._ring_near, _path(name), rank)
        try:
            return partial(self._ring, self._far, (_address(host), port))
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
            while True:
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
        self._spin = self._long_spin if time.perf_counter() - began < LONG_SPIN else SPIN
        return found

    def sleep_until(self, look: Callable[[], Found | None], until: float = math.inf) -> Found | None:
        """Return what `look` finds, or None from the time `until` on; sleep at once, for longer waits."""
        pause = SPIN if self._silent else NAP
        while True:
            self._flag(1)
            found = look()  # a message sent before the flag was seen rings no bell
            now = time.perf_counter()
            if found is None and now < until:
                rung = self.sleep(min(pause, until - now))
                # On a network the bell may overtake the message that it announces.
                pause = SPIN if rung else min(2 * pause, PAUSE if self._silent else NAP)
            self._flag(0)
            if found is not None or now >= until:
                return found

    def _flag(self, asleep: int) -> None:
        if self._flags is not None:
            self._flags[self._rank] = asleep

    def close(self) -> None:
        """Close the sockets and remove what is left in the file system."""
        self._near.close()
        self._far.close()
        self.unlink_flags()
        if not _path(self.name).startswith("\0"):
            os.unlink(_path(self.name))


@cache
def _address(host: str) -> str:
    return socket.gethostbyname(host)


def _path(name: str) -> str:
    """Return the address of a socket within the node; on Linux it leaves nothing in the file system."""
    return f"\0{name}" if sys.platform == "linux" else f"{tempfile.gettempdir()}/{name}"


def _flags_path(name: str) -> str:
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()  # noqa: S108
    return f"{folder}/{name}"
