"""The chain without MPI, where each rank is a thread with its own connections, and what "auto" chooses."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.chain import LEAST_BYTES, TRIALS, Chain, Choice, Route, unpacked
from mpi_ata.clusters.mpi.links import Address, LinkBrokenError, Links
from mpi_ata.clusters.network import PIECE_BYTES, check_exchange
from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER

N = 4
SIZE = 3 * PIECE_BYTES // 8 + 17  # numbers: some pieces, the last one short
FAR = ["a", "b", "c", "d"]


def patient(silent: float) -> None:
    """Give up after 10 seconds."""
    if silent > 10:
        raise LinkBrokenError("a test waits for 10 seconds")


@pytest.fixture
def ranks() -> Iterator[list[Links]]:
    """Yield the connections of a manager and its workers, all in one process."""
    links = [Links() for _ in range(N + 1)]
    for rank, own in enumerate(links):
        own.meet(rank, [Address(host_name(), other.port) for other in links], "secret")
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


@pytest.mark.parametrize("stranger", [False, True])
def test_who_is_of_an_earlier_generation_or_does_not_know_the_token_is_not_listened_to(
    ranks: list[Links], stranger: bool
) -> None:
    first, route = Links() if stranger else ranks[MANAGER], Route(1, (1,))
    if stranger:
        first.meet(MANAGER, [Address(host_name(), other.port) for other in ranks], "wrong")
    earlier = route if stranger else Route(0, (1,))
    Chain(first, earlier, MANAGER).send_point(np.zeros(9), patient)  # which nobody receives
    Chain(ranks[MANAGER], route, MANAGER).send_point(np.ones(9), patient)
    x = np.empty(9)
    Chain(ranks[1], route, 1).pass_point(x, patient)
    assert x.tolist() == [1.0] * 9
    first.close()


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
