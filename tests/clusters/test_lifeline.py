"""Each end of a lifeline notices when the process at the other end is gone."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from mpi_ata.clusters.mpi.introductions import LOOPBACK, PENDING, Address, Introduction
from mpi_ata.clusters.mpi.liveness import Lifeline, Lifelines
from mpi_ata.layout import MANAGER

SECRET = b"only ranks know "


@contextmanager
def child(action: Callable[[], object]) -> Iterator[int]:
    """Run something in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def manager_ends(workers: int = 2) -> Lifelines:
    return Lifelines(SECRET, alone=True, workers=workers)


def connected(port: int, rank: int) -> Lifeline:
    line = Lifeline(Address(LOOPBACK, port), SECRET, rank)
    assert line.connected
    return line


_held: list[Lifeline] = []


def accepted(lines: Lifelines, *ranks: int) -> None:
    """Wait until workers are connected."""

    def admitted() -> bool:
        lines.admit(0.01)
        return set(ranks) <= set(lines._connections)

    assert eventually(admitted)
    lines.watch(ranks)


def eventually(found: Callable[[], object]) -> object:
    until = time.monotonic() + 10
    while not (value := found()) and time.monotonic() < until:
        time.sleep(0.01)
    return value


def test_the_manager_finds_out_which_worker_was_killed() -> None:
    def serve() -> None:
        _held.append(connected(lines.port, rank))
        time.sleep(60)

    with closing(manager_ends()) as lines:
        rank = 3
        with child(serve) as victim:
            rank = 4
            with child(serve):
                accepted(lines, 3, 4)
                assert list(lines.broken()) == []
                os.kill(victim, signal.SIGKILL)
                assert eventually(lambda: list(lines.broken())) == [3]
                assert list(lines.broken()) == []  # reported once


@pytest.mark.parametrize("dismissed", [True, False])
def test_a_worker_that_leaves_learns_whether_all_ranks_leave_in_order(dismissed: bool) -> None:
    with (
        closing(manager_ends()) as lines,
        child(lambda: leave(lines.port)) as leaving,
    ):
        accepted(lines, 1)
        time.sleep(0.2)
        if dismissed:
            lines.dismiss()
        else:
            lines.close()
        assert os.waitstatus_to_exitcode(os.waitpid(leaving, 0)[1]) == dismissed


def leave(port: int) -> None:
    line = connected(port, 1)
    line.release()
    os._exit(line.dismissed())


def busy(port: int) -> None:
    _held.append(connected(port, 1))
    while True:  # it never looks
        pass


def stopped(port: int) -> None:
    _held.append(connected(port, 1))
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("worker", [busy, stopped])
def test_a_worker_ends_with_its_manager_whatever_it_is_doing(worker: Callable[[int], None]) -> None:
    with closing(manager_ends()) as lines, child(lambda: worker(lines.port)) as pid:
        accepted(lines, 1)
        time.sleep(0.2)
        lines.close()
        assert eventually(lambda: os.waitpid(pid, os.WNOHANG)[1]) == signal.SIGKILL


def admitting(lines: Lifelines) -> threading.Thread:
    """Let the manager admit workers for a second, as it does while it waits for all of them."""

    def admit() -> None:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            lines.admit(0.01)

    thread = threading.Thread(target=admit)
    thread.start()
    return thread


def test_who_does_not_know_the_secret_is_turned_away() -> None:
    with closing(manager_ends()) as lines:
        thread = admitting(lines)
        stranger = Lifeline(Address(LOOPBACK, lines.port), b"nor can it guess", 1)
        assert not stranger.connected
        thread.join()
        with child(lambda: busy(lines.port)) as pid:
            accepted(lines, 1)
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: list(lines.broken())) == [1]


def test_silent_strangers_hold_nobody_up() -> None:
    with ExitStack() as stack:
        lines = stack.enter_context(closing(manager_ends()))
        for _ in range(2 * PENDING):
            stack.enter_context(socket.create_connection((LOOPBACK, lines.port)))
        began = time.monotonic()
        with child(lambda: busy(lines.port)):
            accepted(lines, 1)
        assert time.monotonic() - began < 3.0


def test_workers_that_all_connect_at_once_are_all_admitted() -> None:
    with ExitStack() as stack:
        lines = stack.enter_context(closing(manager_ends(3 * PENDING)))
        address = LOOPBACK, lines.port
        links = [stack.enter_context(socket.create_connection(address)) for _ in range(3 * PENDING)]
        for _ in links:
            lines.admit(0.0)  # before any of them has introduced itself
        for rank, link in enumerate(links, 1):
            link.sendall(Introduction.new(rank, MANAGER).signed(SECRET))
        accepted(lines, *range(1, len(links) + 1))


def test_nobody_listens_once_all_workers_are_there() -> None:
    with closing(manager_ends()) as lines, child(lambda: busy(lines.port)):
        accepted(lines, 1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, lines.port))


def test_a_worker_depends_on_nobody_who_does_not_know_the_secret() -> None:
    with closing(socket.create_server((LOOPBACK, 0))) as server:
        seen: list[bytes] = []

        def pretend() -> None:
            link, _ = server.accept()
            seen.append(link.recv(1000))
            link.sendall(b"\1" * 32)
            link.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        line = Lifeline(Address(LOOPBACK, server.getsockname()[1]), SECRET, 1)
        thread.join()
        assert not line.connected
        assert SECRET not in seen[0]


def test_an_unreachable_manager_is_no_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    line = Lifeline(Address(LOOPBACK, port), SECRET, 1)
    assert not line.connected
    line.release()
    assert line.dismissed()
