"""Waiting for messages, and being woken."""

import threading
import time
from collections.abc import Iterator

import pytest

from mpi_ata.cluster import bell as bells
from mpi_ata.cluster.bell import Bell, host_name

LOOPBACK = "127.0.0.1"


@pytest.fixture
def bell() -> Iterator[Bell]:
    found = Bell()
    yield found
    found.close()


@pytest.fixture
def other() -> Iterator[Bell]:
    found = Bell()
    yield found
    found.close()


def test_who_hears_near_workers_only_has_not_heard_all(bell: Bell, other: Bell) -> None:
    hosts = ["here", "here", "here", "there"]
    bell.expect(0, hosts)
    other.expect(2, hosts)
    other.ringer(host_name(), bell.name, bell.port)()
    assert bell.sleep(5)
    assert not bell.heard
    other.expect(3, hosts)
    other.ringer(LOOPBACK, bell.name, bell.port)()
    assert bell.sleep(5)
    assert bell.heard


def test_a_worker_has_heard_all_when_it_has_heard_the_manager(bell: Bell, other: Bell) -> None:
    bell.expect(2, ["there", "here", "here"])
    other.ringer(LOOPBACK, bell.name, bell.port)()
    assert bell.sleep(5)
    assert bell.heard


def test_a_ring_that_overtakes_its_message_is_looked_into(
    bell: Bell, other: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.ringer(host_name(), bell.name, bell.port)()
    bell.sleep(5)
    assert bell.heard
    monkeypatch.setattr(bells, "NAP", 60.0)
    arrived = threading.Event()

    def ring_too_early() -> None:
        time.sleep(0.05)
        other.ringer(host_name(), bell.name, bell.port)()
        time.sleep(0.05)
        arrived.set()

    thread = threading.Thread(target=ring_too_early)
    thread.start()
    began = time.monotonic()
    assert bell.wait(lambda: True if arrived.is_set() else None)
    assert time.monotonic() - began < 30
    thread.join()


def test_waiting_has_an_end_where_nothing_comes(bell: Bell) -> None:
    until = time.perf_counter() + 0.05
    assert bell.wait(lambda: None, until) is None
    assert time.perf_counter() >= until
