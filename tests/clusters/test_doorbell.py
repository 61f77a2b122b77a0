"""Waiting for messages, and being woken."""

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mpi_ata.clusters.mpi import buffers
from mpi_ata.clusters.mpi import liveness as bells
from mpi_ata.clusters.mpi.buffers import shared_file, unlink_shared_file
from mpi_ata.clusters.mpi.introductions import (
    INTERFACE_VARIABLE,
    LOOPBACK,
    Address,
    bound_socket,
    chosen_address,
)
from mpi_ata.clusters.mpi.liveness import RINGS, Doorbell
from mpi_ata.errors import RunError

HOSTS = ["here", "here", "here", "there"]


@pytest.fixture
def doorbell() -> Iterator[Doorbell]:
    found = Doorbell(0, HOSTS[:2])
    yield found
    found.close()


@pytest.fixture
def other() -> Iterator[Doorbell]:
    found = Doorbell(1, HOSTS[:2])
    yield found
    found.close()


def ring(sender: Doorbell, receiver: Doorbell, by_network: bool = False) -> None:
    sender.ringer(receiver.name, Address(LOOPBACK, receiver.port) if by_network else None)()


def test_hearing_the_workers_on_the_own_node_is_not_hearing_all() -> None:
    manager, near, far = (Doorbell(rank, HOSTS) for rank in (0, 2, 3))
    with closing(manager), closing(near), closing(far):
        ring(near, manager)
        assert manager.sleep(5)
        assert not manager.heard
        ring(far, manager, by_network=True)
        assert manager.sleep(5)
        assert manager.heard


def test_a_worker_has_heard_all_when_it_has_heard_the_manager() -> None:
    hosts = ["there", "here", "here"]
    with closing(Doorbell(2, hosts)) as worker, closing(Doorbell(0, hosts)) as manager:
        ring(manager, worker, by_network=True)
        assert worker.sleep(5)
        assert worker.heard


def test_ranks_on_one_node_open_no_port(doorbell: Doorbell) -> None:
    assert doorbell.port == 0


def test_other_nodes_cannot_reach_a_port_that_is_for_this_node_alone() -> None:
    with closing(bound_socket(socket.SOCK_STREAM, alone=True)) as found:
        assert found.getsockname()[0] == LOOPBACK


def test_without_ipv6_a_rank_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(bound_socket(socket.SOCK_STREAM, alone=False)) as both:
        both.listen()
        socket.create_connection((LOOPBACK, both.getsockname()[1])).close()
    monkeypatch.setattr(socket, "IPV6_V6ONLY", -1)  # an option that no kernel has
    with closing(bound_socket(socket.SOCK_STREAM, alone=False)) as found:
        assert found.family == socket.AF_INET


def test_the_choice_of_an_interface_is_for_ranks_on_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACE_VARIABLE, "ib7")
    with closing(Doorbell(1, HOSTS[:2])) as found:
        assert found.address == LOOPBACK


@pytest.mark.parametrize("wanted", ["lo", "127.0.0.0/8"])
def test_the_user_chooses_an_interface_by_its_name_or_its_network(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERFACE_VARIABLE, wanted)
    chosen_address.cache_clear()
    with closing(bound_socket(socket.SOCK_STREAM, alone=False)) as found:
        assert found.getsockname()[0] == LOOPBACK
    chosen_address.cache_clear()


def test_an_interface_that_does_not_exist_is_rejected_with_those_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERFACE_VARIABLE, "ib7")
    chosen_address.cache_clear()
    with pytest.raises(RunError, match=r"MPI_ATA_INTERFACE='ib7' is neither .*; it has lo \(127.0.0.1\)"):
        chosen_address()
    chosen_address.cache_clear()


def test_who_rings_without_end_keeps_nobody_from_working(doorbell: Doorbell, other: Doorbell) -> None:
    for _ in range(3 * RINGS):
        ring(other, doorbell)
    assert doorbell.sleep(5)
    assert doorbell.wait(lambda: True)


@pytest.mark.parametrize("create", [True, False])
def test_a_link_that_somebody_has_planted_is_not_followed(
    create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "FOLDER", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "flags").symlink_to(victim)
    with pytest.raises(OSError, match=r"exists|symbolic"):
        shared_file("flags", create)
    assert victim.read_text() == "precious"


def test_a_file_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "FOLDER", str(tmp_path))
    os.close(shared_file("flags", create=True))
    assert stat.S_IMODE((tmp_path / "flags").stat().st_mode) == 0o600
    os.close(shared_file("flags", create=False))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        shared_file("flags", create=False)
    unlink_shared_file("flags")
    unlink_shared_file("flags")
    assert not list(tmp_path.iterdir())


def test_a_ring_that_overtakes_its_message_is_followed_up(
    doorbell: Doorbell, other: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring(other, doorbell)
    doorbell.sleep(5)
    assert doorbell.heard
    monkeypatch.setattr(bells, "NAP_SECONDS", 60.0)
    arrived = threading.Event()

    def ring_too_early() -> None:
        time.sleep(0.05)
        ring(other, doorbell)
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
