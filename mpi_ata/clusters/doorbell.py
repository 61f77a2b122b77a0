"""Waiting without burning a core: a datagram wakes a sleeping rank, MPI carries the data.

Nothing depends on the bell but latency: a rank that sleeps looks for messages by itself every 50 ms,
and one whose bell cannot be heard every few milliseconds.
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

Found = TypeVar("Found")
SPIN = 50e-6  # seconds of looking again at once, which costs less than falling asleep and waking up
LONG_SPIN = 1e-3  # the same, where the latest wait was shorter than that
NAP = 0.05  # the longest sleep where the bell is heard
HEARING = 0.2  # how long a rank listens whether its bell can be heard at all
PAUSE = 0.01  # the longest sleep where it is not: less than 1 % of a core
NEAR = -1  # stands for all ranks of this node, of whom one tells as much as the other


class Doorbell:
    """Two sockets to be rung at: one within the node, one across nodes."""

    def __init__(self) -> None:
        self._rank = 0
        self._silent = {0}  # ranks that will ring, but were not yet heard
        self._spin, self._long_spin = SPIN, LONG_SPIN
        self._flags: mmap.mmap | None = None  # one byte a rank: whether it sleeps
        self.name = f"mpi_ata-{os.getpid()}-{secrets.token_hex(8)}"
        self._near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near.bind(_path(self.name))
        self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.bind(("", 0))
        self.port: int = self._far.getsockname()[1]
        self._near.setblocking(False)
        self._far.setblocking(False)

    @property
    def heard(self) -> bool:
        """Whether all who will ring were heard at least once."""
        return not self._silent

    def expect(self, rank: int, hosts: list[str]) -> None:
        """Say which rank this is: workers ring at the manager, who is rank 0, and it at all of them."""
        ringing = range(1) if rank else range(1, len(hosts))
        self._rank = rank
        if rank == 0 and hosts.count(hosts[0]) > (os.cpu_count() or 1):
            self._long_spin = SPIN  # its core is better used by a worker
        self._silent = {NEAR if hosts[other] == hosts[rank] else other for other in ringing}

    def share_flags(self, name: str, ranks: int) -> None:
        """Tell other ranks on this node when this one sleeps: who is awake need not be rung for."""
        with suppress(OSError, ValueError), open(_flags_path(name), "r+b" if self._rank else "w+b") as file:
            if self._rank == 0:
                file.write(b"\1" * ranks)
                file.flush()
            self._flags = mmap.mmap(file.fileno(), ranks)

    def unlink_flags(self) -> None:
        """Take the flags out of the file system, now that everyone has them: a kill leaves nothing behind."""
        Path(_flags_path(self.name)).unlink(missing_ok=True)

    def ringer(self, host: str, name: str, port: int, rank: int = 0) -> Callable[[], None]:
        """What rings the bell of another rank, given its host, and the name and port of its bell."""
        if host == host_name():
            return partial(self._ring_near, _path(name), rank)
        try:
            return partial(self._ring, self._far, (_address(host), port))
        except OSError:
            return lambda: None  # it will look for itself

    def _ring_near(self, address: str, rank: int) -> None:
        if self._flags is None or self._flags[rank]:
            self._ring(self._near, address)

    def _ring(self, bell: socket.socket, address: str | tuple[str, int]) -> None:
        with suppress(OSError):  # a full queue means that it was rung already
            bell.sendto(self._rank.to_bytes(4, "little"), address)

    def sleep(self, seconds: float) -> bool:
        """Sleep until somebody rings, at most so long; whether somebody did."""
        ready, _, _ = select.select(
            [self._near, self._far], [], [], seconds
        )  # poll() counts whole milliseconds
        for bell in ready:
            with suppress(BlockingIOError):
                while True:
                    self._silent.discard(int.from_bytes(bell.recv(4), "little"))
                    self._silent -= {NEAR} if bell is self._near else set()
        return bool(ready)

    def wait(self, look: Callable[[], Found | None], until: float = math.inf) -> Found | None:
        """What `look` finds as soon as it finds something; None from the time `until` on."""
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
        """The same, where it will take longer."""
        pause = SPIN if self._silent else NAP
        while True:
            self._flag(1)
            found = look()  # what came before the flag was seen rings no bell
            now = time.perf_counter()
            if found is None and now < until:
                rung = self.sleep(min(pause, until - now))
                # On a network the bell may overtake the message that it rings for.
                pause = SPIN if rung else min(2 * pause, PAUSE if self._silent else NAP)
            self._flag(0)
            if found is not None or now >= until:
                return found

    def _flag(self, asleep: int) -> None:
        if self._flags is not None:
            self._flags[self._rank] = asleep

    def close(self) -> None:
        """Let nobody ring any more."""
        self._near.close()
        self._far.close()
        self.unlink_flags()
        if not _path(self.name).startswith("\0"):
            os.unlink(_path(self.name))


def host_name() -> str:
    """The name of this node; on Slurm the one that Slurm knows it by."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@cache
def _address(host: str) -> str:
    return socket.gethostbyname(host)


def _path(name: str) -> str:
    """Where a bell within the node stands: on Linux outside of the file system, so nothing is left behind."""
    return f"\0{name}" if sys.platform == "linux" else f"{tempfile.gettempdir()}/{name}"


def _flags_path(name: str) -> str:
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()  # noqa: S108
    return f"{folder}/{name}"
