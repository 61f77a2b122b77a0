"""Neighbours on one node as one link of an exchange: ranks are threads with connections of their own."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import FOLDER, room_of
from mpi_ata.clusters.exchange.chain import Chain, receive_sum, send_point
from mpi_ata.clusters.exchange.links import LinkBrokenError, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.opening import node_memory
from mpi_ata.clusters.exchange.pieces import PIECE
from mpi_ata.clusters.exchange.route import Route, followers_of, unpacked
from mpi_ata.clusters.exchange.sharing import SharingChain, receive_tokens
from mpi_ata.clusters.handshake import Rank
from tests.clusters.linked import expect_no_sum, linked, patient

N = 6
SIZE = 7 * PIECE // 8 + 17  # numbers: more pieces than workers, the last one short
ALL = tuple(range(1, N + 1))
NODES = [{1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}, dict.fromkeys(ALL, "a"), {2: "a", 3: "a"}]


@pytest.fixture
def ranks() -> Iterator[list[Links]]:
    with linked(N + 1) as links:
        yield links


def memories(nodes: dict[int, str], template: Array) -> dict[int, NodeMemory]:
    """Return the memory of each rank, open."""
    word, found = secrets.token_hex(8), {}
    for rank, node in nodes.items():
        here = [other for other in nodes if nodes[other] == node]
        found[rank] = NodeMemory(template, f"mpi_ata-test-{word}-{node}", here, rank)
    for memory in found.values():
        memory.reserve()
    for memory in found.values():
        memory.map()
        assert memory.usable
    return found


def in_threads(work: Callable[[int], Any], members: tuple[int, ...]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in members]
    for thread in threads:
        thread.start()
    return threads


def results(members: tuple[int, ...], dtype: Any = np.float32) -> tuple[dict[int, Array], Array]:
    """Return a result for each member, and their sum in worker order."""
    rng = np.random.default_rng(5)
    own: dict[int, Array] = {rank: rng.standard_normal(SIZE).astype(dtype) for rank in members}
    expected = own[members[0]].copy()
    for rank in members[1:]:
        expected += own[rank]
    return own, expected


@pytest.mark.parametrize("members", [ALL, (1, 3, 4, 6), (3, 4), (5,)])
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nodes_pass_x_and_add_up_in_worker_order_bit_for_bit(
    ranks: list[Links], members: tuple[int, ...], nodes: dict[int, str], dtype: Any
) -> None:
    own, expected = results(members, dtype)
    shared, route = memories(nodes, expected), Route(0, members, followers=followers_of(members, nodes))
    for round in range(3):  # the second time on connections and memory that were used before
        x, points = expected + np.asarray(round, dtype), dict[int, Array]()

        def work(rank: int, points: dict[int, Array] = points) -> None:
            points[rank], chain = np.empty(SIZE, dtype), Chain(ranks[rank], route, rank, shared.get(rank))
            chain.pass_point(points[rank], patient)
            chain.pass_sum(own[rank], patient)

        threads = in_threads(work, members)
        send_point(ranks[0], route, x, patient)
        total = np.empty_like(x)
        receive_sum(ranks[0], route, total, patient)
        for thread in threads:
            thread.join(10)
        assert total.tobytes() == expected.tobytes()
        assert {rank: point.tobytes() == x.tobytes() for rank, point in points.items()} == dict.fromkeys(
            members, True
        )


@pytest.mark.parametrize("members", [ALL, (1, 3, 4, 6), (3, 4), (5,)])
@pytest.mark.parametrize("nodes", NODES)
def test_all_workers_of_all_nodes_get_the_sum_that_they_share_before_the_manager_hears_of_it(
    ranks: list[Links], members: tuple[int, ...], nodes: dict[int, str]
) -> None:
    own, expected = results(members)
    shared = memories(nodes, expected)
    route = Route(0, members, budget=4, followers=followers_of(members, nodes))
    totals = {rank: np.zeros_like(expected) for rank in members}

    def work(rank: int) -> None:
        SharingChain(ranks[rank], route, rank, shared.get(rank)).share_sum(own[rank], totals[rank], patient)

    in_threads(work, members)
    receive_tokens(ranks[0], route, patient)
    assert {total.tobytes() for total in totals.values()} == {expected.tobytes()}


@pytest.mark.parametrize("leaving", [1, 3, 4, 5])  # leaders and followers of two nodes
@pytest.mark.parametrize("results_in", [False, True])
def test_when_one_leaves_all_others_notice_it(ranks: list[Links], leaving: int, results_in: bool) -> None:
    nodes, broken, own = NODES[0], list[int](), np.ones(SIZE)
    shared, route = memories(nodes, own), Route(0, ALL, followers=followers_of(ALL, nodes))

    def work(rank: int) -> None:
        chain = Chain(ranks[rank], route, rank, shared[rank])
        try:
            chain.pass_point(np.empty(SIZE), patient)
            if rank == leaving:
                time.sleep(0.3 * results_in)  # the others have put theirs where they belong
                raise LinkBrokenError
            chain.pass_sum(own, patient)
            chain.pass_point(np.empty(SIZE), patient)  # of a round that never comes
        except LinkBrokenError:
            broken.append(rank)
            chain.leave()

    threads = in_threads(work, ALL)
    expect_no_sum(ranks[0], route, SIZE, threads)
    assert sorted(broken) == list(ALL)


def test_neighbours_that_share_memory_are_one_link() -> None:
    cyclic = {rank: "ab"[rank % 2] for rank in ALL}
    assert followers_of(ALL, NODES[0]) == (2, 3, 5, 6)
    assert followers_of(ALL, cyclic) == ()
    assert followers_of((1, 3, 4, 6), cyclic) == (3, 6)  # those between them are idle
    assert followers_of(ALL, NODES[2]) == (3,)  # all others have no memory
    route = Route(7, ALL, 9, 1, (4, 5), followers=(2, 3, 5, 6))
    assert (route.leaders, route.node_of(2), route.node_of(4)) == ((1, 4), (1, 2, 3), (4, 5, 6))
    assert unpacked(route.packed().view(np.uint8)) == route


def test_nothing_is_in_the_file_system_once_the_memory_is_open_and_a_slot_is_seen_by_all() -> None:
    before = set(os.listdir(FOLDER))
    shared = memories({1: "a", 2: "a"}, np.zeros(SIZE))
    assert not {name for name in set(os.listdir(FOLDER)) - before if name.startswith("mpi_ata-test")}
    shared[1].at(1)[:], shared[2].at(2)[:] = 3, 4
    assert (shared[2].at(1).mean(), shared[1].at(2).mean()) == (3, 4)


@pytest.mark.parametrize("fault", ["full", "missing", "other"])
def test_where_memory_is_full_missing_or_not_the_same_nobody_uses_it(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    descriptor = os.open(FOLDER, os.O_RDONLY)
    size = room_of(descriptor) if fault == "full" else 100
    os.close(descriptor)
    template, name = np.broadcast_to(np.zeros(1), (size // 8,)), f"mpi_ata-test-{secrets.token_hex(8)}"
    module = "mpi_ata.clusters.exchange.node_memory.FOLDER"
    if fault == "missing":
        monkeypatch.setattr(module, str(tmp_path / "nowhere"))
    first = NodeMemory(template, name, [1, 2], 1)
    if fault == "other":  # a container of its own
        monkeypatch.setattr(module, str(tmp_path))
    second = NodeMemory(template, name, [1, 2], 2)
    for memory in (first, second):
        assert not (Path(FOLDER) / name).exists() or not (Path(FOLDER) / name).stat().st_size
        memory.reserve()
    first.map()
    second.map()
    assert (first.usable, second.usable) == (fault == "other", False)
    assert not (Path(FOLDER) / name).exists()
    assert not any(tmp_path.iterdir())


def test_memory_is_reserved_only_where_workers_of_a_node_may_need_it() -> None:
    hosts = ["a", "a", "a", "b", "b", "c"]
    found = [Rank(host, f"mpi_ata-test-{secrets.token_hex(8)}", 0, 0, 0, "", b"", "") for host in hosts]
    large, small, links = np.zeros(20000), np.zeros(1000), Links()

    def used(exchange: str, template: Array, rank: int, replicated: bool = False, only: int = 6) -> bool:
        memory = node_memory(links, exchange, template, rank, found[:only], replicated)
        if memory is not None:
            memory.reserve()
            memory.map()
        return memory is not None

    assert used("auto", large, 3)
    assert not used("auto", large, 5)  # alone on its node
    assert not used("auto", small, 3)  # by the star
    assert used("chain", small, 3)
    assert used("auto", small, 3, replicated=True)
    assert not used("auto", large, 1, only=3)  # all on the manager's node: by the star
    links.close()
