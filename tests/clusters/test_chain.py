"""The chain without MPI, where each rank is a thread with its own connections, and what "auto" chooses."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.chain import LEAST_BYTES, TRIALS, Chain, Choice, Route, open_links, unpacked
from mpi_ata.clusters.mpi.introductions import LOOPBACK, Address
from mpi_ata.clusters.mpi.links import LinkBrokenError, Links
from mpi_ata.clusters.network import PIECE_BYTES, check_exchange
from mpi_ata.layout import MANAGER

N = 4
SIZE = 3 * PIECE_BYTES // 8 + 17  # numbers: some pieces, the last one short
FAR = ["a", "b", "c", "d"]
SECRET = b"only ranks know "


def patient(silent: float) -> None:
    """Give up after 10 seconds."""
    if silent > 10:
        raise LinkBrokenError("a test waits for 10 seconds")


@pytest.fixture
def ranks() -> Iterator[list[Links]]:
    """Yield the connections of a manager and its workers, all in one process."""
    links = [Links(alone=True) for _ in range(N + 1)]
    for rank, own in enumerate(links):
        own.meet(rank, [Address(LOOPBACK, other.port) for other in links], SECRET)
    yield links
    for own in links:
        own.close()


def worker(links: Links, route: Route, rank: int, own: Array, points: dict[int, Array]) -> threading.Thread:
    def work() -> None:
        x, chain = np.empty_like(own), Chain(links, route, rank)
        chain.pass_point(x, patient)
        points[rank] = x
        chain.pass_sum(own, patient)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("members", [(1, 2, 3, 4), (2, 4), (3,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_get_x_and_the_sum_is_added_up_in_worker_order_bit_for_bit(
    ranks: list[Links], members: tuple[int, ...], dtype: type
) -> None:
    rng = np.random.default_rng(5)
    own: dict[int, Array] = {rank: rng.standard_normal(SIZE).astype(dtype) for rank in members}
    x: Array = rng.standard_normal(SIZE).astype(dtype)
    route = Route(0, members)
    for _ in range(2):  # the second time on connections that are open
        points: dict[int, Array] = {}
        threads = [worker(ranks[rank], route, rank, own[rank], points) for rank in members]
        manager, total = Chain(ranks[MANAGER], route, MANAGER), np.empty_like(x)
        manager.send_point(x, patient)
        manager.receive_sum(total, patient)
        for thread in threads:
            thread.join(10)
        expected = own[members[0]].copy()
        for rank in members[1:]:
            expected += own[rank]
        assert total.tobytes() == expected.tobytes()
        assert all(points[rank].tobytes() == x.tobytes() for rank in members)


def test_when_one_leaves_all_others_notice_at_once(ranks: list[Links]) -> None:
    route, broken = Route(0, (1, 2, 3, 4)), list[int]()

    def work(rank: int) -> None:
        chain = Chain(ranks[rank], route, rank)
        try:
            chain.pass_point(np.empty(SIZE), patient)
            if rank == 2:
                raise LinkBrokenError
            chain.pass_sum(np.ones(SIZE), patient)
            chain.pass_point(np.empty(SIZE), patient)  # of a round that never comes
        except LinkBrokenError:
            broken.append(rank)
            chain.leave()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in route.ranks]
    for thread in threads:
        thread.start()
    manager = Chain(ranks[MANAGER], route, MANAGER)
    manager.send_point(np.ones(SIZE), patient)
    began = time.perf_counter()
    with pytest.raises(LinkBrokenError):
        manager.receive_sum(np.empty(SIZE), patient)
    manager.leave()
    for thread in threads:
        thread.join(10)
    assert time.perf_counter() - began < 5  # not by the patience of those who wait
    assert sorted(broken) == [1, 2, 3, 4]


def test_connections_of_an_earlier_generation_are_not_listened_to(ranks: list[Links]) -> None:
    ranks[MANAGER].connect(1)  # which nobody accepts
    route, own = Route(1, (1,)), np.ones(9)
    points: dict[int, Array] = {}
    thread = worker(ranks[1], route, 1, own, points)
    manager, total = Chain(ranks[MANAGER], route, MANAGER), np.empty(9)
    manager.send_point(own, patient)
    manager.receive_sum(total, patient)
    thread.join(10)
    assert points[1].tolist() == total.tolist() == [1.0] * 9


def test_who_does_not_know_the_secret_is_neither_listened_to_nor_sent_anything(ranks: list[Links]) -> None:
    addresses = [Address(LOOPBACK, other.port) for other in ranks]
    with closing(Links(alone=True)) as stranger:
        stranger.meet(MANAGER, addresses, b"nor can it guess")
        failures: list[Exception] = []

        def push() -> None:
            try:
                Chain(stranger, Route(0, (1,)), MANAGER).send_point(np.zeros(9), patient)
            except LinkBrokenError as error:
                failures.append(error)

        pushing = threading.Thread(target=push, daemon=True)
        pushing.start()
        points: dict[int, Array] = {}
        thread = worker(ranks[1], Route(0, (1,)), 1, np.ones(9), points)
        pushing.join(10)
        assert [str(error) for error in failures] == ["a neighbour has closed the connection"]
        manager = Chain(ranks[MANAGER], Route(0, (1,)), MANAGER)
        manager.send_point(np.ones(9), patient)
        manager.receive_sum(np.empty(9), patient)
        thread.join(10)
        assert points[1].tolist() == [1.0] * 9
        addresses[1] = Address(LOOPBACK, stranger.port)  # it listens where rank 1 was
        ranks[MANAGER].meet(MANAGER, addresses, SECRET)
        listening = threading.Thread(target=lambda: stranger._listener.wait(10), daemon=True)
        listening.start()
        with pytest.raises(LinkBrokenError):
            Chain(ranks[MANAGER], Route(1, (1,)), MANAGER).send_point(np.ones(9), brief)


def brief(silent: float) -> None:
    """Give up after a tenth of a second."""
    if silent > 0.1:
        raise LinkBrokenError("a test waits for a tenth of a second")


def test_silent_strangers_hold_up_neither_a_round_nor_its_deadlines(ranks: list[Links]) -> None:
    route, own = Route(0, (1,)), np.ones(9)
    with ExitStack() as stack:
        for links in ranks[:2]:
            for _ in range(25):
                stack.enter_context(socket.create_connection((LOOPBACK, links.port)))
        began, points = time.perf_counter(), dict[int, Array]()
        thread = worker(ranks[1], route, 1, own, points)
        manager = Chain(ranks[MANAGER], route, MANAGER)
        manager.send_point(own, patient)
        manager.receive_sum(np.empty(9), patient)
        thread.join(10)
        assert points[1].tolist() == [1.0] * 9
        with pytest.raises(LinkBrokenError, match="a tenth of a second"):
            ranks[2].receive(3, memoryview(bytearray(9)), brief)
        assert time.perf_counter() - began < 3.0


def test_ports_are_opened_only_where_a_chain_is_possible() -> None:
    small, large = np.zeros(10), np.zeros(LEAST_BYTES // 8)
    asked = [("star", large, FAR), ("chain", small, FAR), ("auto", large, ["a", "a", "a", "b"])]
    assert [open_links(*each) for each in asked] == [None, None, None]
    for each in (("auto", large, FAR), ("chain", large, ["a", "a"])):
        links = open_links(*each)
        assert links is not None
        links.close()


def test_a_route_is_sent_as_numbers() -> None:
    route = Route(7, (1, 3, 4))
    assert unpacked(route.packed().view(np.uint8)) == route


def measured(choice: Choice, seconds: dict[bool, float]) -> list[bool]:
    """Return which of the trial rounds used the chain; `seconds` by whether it was the chain."""
    ways = []
    for _ in range(2 * TRIALS):
        ways.append(choice.chain(FAR))
        time.sleep(0.02 + seconds[ways[-1]])
        choice.delivered(0.02, last=False)
        choice.delivered(0.01, last=True)
    return ways


@pytest.mark.parametrize("faster", [True, False])
def test_after_some_rounds_of_each_the_faster_way_is_used(faster: bool) -> None:
    choice = Choice("auto", "a", LEAST_BYTES)
    ways = measured(choice, {faster: 0.0, not faster: 0.05})  # far apart, even on a busy machine
    assert ways == [True] * TRIALS + [False] * TRIALS
    assert choice.is_star == (not faster)
    assert [choice.chain(FAR) for _ in range(3)] == [faster] * 3


@pytest.mark.parametrize(
    ("exchange", "size", "hosts", "chain"),
    [
        ("auto", LEAST_BYTES - 1, FAR, False),  # small arrays, and less than two workers elsewhere
        ("auto", LEAST_BYTES, ["a", "a", "a"], False),
        ("auto", LEAST_BYTES, ["a", "b"], False),
        ("auto", LEAST_BYTES, ["b"], False),
        ("chain", 10**4, ["a", "a"], True),  # what the user asks for is used
        ("star", 10**9, FAR, False),
    ],
)
def test_rounds_go_by_the_star_where_a_chain_cannot_be_better_or_is_not_wanted(
    exchange: str, size: int, hosts: list[str], chain: bool
) -> None:
    assert Choice(exchange, "a", size).chain(hosts) == chain


def test_unknown_ways_are_rejected() -> None:
    with pytest.raises(ValueError, match="exchange='ring' must be one of 'auto', 'star', 'chain'"):
        check_exchange("ring")
