"""Each end of a lifeline notices when the process at the other end is gone."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from mpi_ata.clusters.mpi.liveness import Lifeline, Lifelines
from mpi_ata.launch import host_name

TOKEN = "mpi_ata-1-word"  # noqa: S105


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


def connected(port: int, rank: int, token: str = TOKEN) -> Lifeline:
    line = Lifeline(host_name(), port, token, rank)
    assert line.connected
    return line


_held: list[Lifeline] = []


def accepted(lines: Lifelines, *ranks: int) -> None:
    """Wait until workers are connected."""
    assert eventually(lambda: all(map(lines.watched, ranks)))
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

    with closing(Lifelines(TOKEN)) as lines:
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
    with closing(Lifelines(TOKEN)) as lines, child(lambda: leave(lines.port)) as leaving:
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
    with closing(Lifelines(TOKEN)) as lines, child(lambda: worker(lines.port)) as pid:
        accepted(lines, 1)
        time.sleep(0.2)
        lines.close()
        assert eventually(lambda: os.waitpid(pid, os.WNOHANG)[1]) == signal.SIGKILL


def test_who_does_not_know_the_token_is_turned_away() -> None:
    with closing(Lifelines(TOKEN)) as lines:
        stranger = Lifeline(host_name(), lines.port, "another", 1)
        assert not stranger.connected
        with child(lambda: busy(lines.port)) as pid:
            accepted(lines, 1)
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: list(lines.broken())) == [1]
    time.sleep(0.1)


def test_an_unreachable_manager_is_no_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    line = Lifeline(host_name(), port, TOKEN, 1)
    assert not line.connected
    line.release()
    assert line.dismissed()
