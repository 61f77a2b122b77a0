"""Waiting for messages, and being woken."""

import threading
import time
from collections.abc import Iterator

import pytest

from mpi_ata.clusters.mpi import liveness as bells
from mpi_ata.clusters.mpi.liveness import Doorbell
from mpi_ata.launch import host_name

LOOPBACK = "127.0.0.1"


@pytest.fixture
def doorbell() -> Iterator[Doorbell]:
    found = Doorbell()
    yield found
    found.close()


@pytest.fixture
def other() -> Iterator[Doorbell]:
    found = Doorbell()
    yield found
    found.close()


def test_hearing_the_workers_on_the_own_node_is_not_hearing_all(doorbell: Doorbell, other: Doorbell) -> None:
    hosts = ["here", "here", "here", "there"]
    doorbell.expect(0, hosts)
    other.expect(2, hosts)
    other.ringer(host_name(), doorbell.name, doorbell.port)()
    assert doorbell.sleep(5)
    assert not doorbell.heard
    other.expect(3, hosts)
    other.ringer(LOOPBACK, doorbell.name, doorbell.port)()
    assert doorbell.sleep(5)
    assert doorbell.heard


def test_a_worker_has_heard_all_when_it_has_heard_the_manager(doorbell: Doorbell, other: Doorbell) -> None:
    doorbell.expect(2, ["there", "here", "here"])
    other.ringer(LOOPBACK, doorbell.name, doorbell.port)()
    assert doorbell.sleep(5)
    assert doorbell.heard


def test_a_ring_that_overtakes_its_message_is_followed_up(
    doorbell: Doorbell, other: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.ringer(host_name(), doorbell.name, doorbell.port)()
    doorbell.sleep(5)
    assert doorbell.heard
    monkeypatch.setattr(bells, "NAP_SECONDS", 60.0)
    arrived = threading.Event()

    def ring_too_early() -> None:
        time.sleep(0.05)
        other.ringer(host_name(), doorbell.name, doorbell.port)()
        time.sleep(0.05)
        arrived.set()

    thread = threading.Thread(target=ring_too_early)
    thread.start()
    began = time.monotonic()
    assert doorbell.wait(lambda: True if arrived.is_set() else None)
    assert time.monotonic() - began < 30
    thread.join()


def test_waiting_ends_although_nothing_comes(doorbell: Doorbell) -> None:
    until = time.perf_counter() + 0.05
    assert doorbell.wait(lambda: None, until) is None
    assert time.perf_counter() >= until
