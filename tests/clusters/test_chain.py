"""Exchanges alone, without MPI: each rank is a thread with connections of its own."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import EXCHANGED, ORDER, REPLICATED, Message
from mpi_ata.clusters.exchange.chain import Chain, receive_sum, send_point
from mpi_ata.clusters.exchange.direct import TAIL
from mpi_ata.clusters.exchange.links import Address, LinkBrokenError, Links
from mpi_ata.clusters.exchange.passing import Passing
from mpi_ata.clusters.exchange.pieces import PIECE
from mpi_ata.clusters.exchange.replica import Copy, closed, opened
from mpi_ata.clusters.exchange.route import Route, unpacked
from mpi_ata.clusters.exchange.sharing import SharingChain, receive_tokens, send_copy
from mpi_ata.launch import host_name
from mpi_ata.updates import Momentum
from tests.clusters.linked import expect_no_sum, linked, patient

N = 4
SIZE = 3 * PIECE // 8 + 17  # numbers: some pieces, the last one short


@pytest.fixture
def ranks() -> Iterator[list[Links]]:
    with linked(N + 1) as links:
        yield links


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
        send_point(ranks[0], route, x, patient)
        total = np.empty_like(x)
        receive_sum(ranks[0], route, total, patient)
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
    expect_no_sum(ranks[0], route, SIZE, threads)
    assert sorted(broken) == [1, 2, 3, 4]


def test_connections_of_an_earlier_generation_are_not_used(ranks: list[Links]) -> None:
    first, second = Route(0, (1,)), Route(1, (1,))
    send_point(ranks[0], first, np.zeros(9), patient)  # which nobody receives
    send_point(ranks[0], second, np.ones(9), patient)
    x = np.empty(9)
    Chain(ranks[1], second, 1).pass_point(x, patient)
    assert x.tolist() == [1.0] * 9


def test_a_stranger_who_does_not_know_the_token_is_not_listened_to(ranks: list[Links]) -> None:
    stranger = Links()
    stranger.meet(0, [Address(host_name(), other.port) for other in ranks], "wrong")
    send_point(stranger, Route(0, (1,)), np.zeros(9), patient)
    send_point(ranks[0], Route(0, (1,)), np.ones(9), patient)
    x = np.empty(9)
    Chain(ranks[1], Route(0, (1,)), 1).pass_point(x, patient)
    assert x.tolist() == [1.0] * 9
    stranger.close()


def test_a_route_is_sent_as_numbers() -> None:
    route = Route(7, (1, 3, 4))
    assert unpacked(route.packed().view(np.uint8)) == route


@pytest.mark.parametrize("size", [SIZE, 4 * TAIL])  # with parts shorter and longer than the tail of a turn
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("members", [(1, 2, 3, 4), (1, 3, 4), (2, 4), (3,)])
def test_workers_that_share_a_sum_all_get_the_same_bits_as_by_the_chain(
    ranks: list[Links], members: tuple[int, ...], direct: bool, size: int
) -> None:
    rng = np.random.default_rng(6)
    own: dict[int, Array] = {rank: rng.standard_normal(size).astype(np.float32) for rank in members}
    route, totals = (
        Route(0, members, budget=4, direct=direct),
        {rank: np.empty_like(own[rank]) for rank in own},
    )

    def work(rank: int) -> None:
        SharingChain(ranks[rank], route, rank).share_sum(own[rank], totals[rank], patient)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in members]
    for thread in threads:
        thread.start()
    receive_tokens(ranks[0], route, patient)
    for thread in threads:
        thread.join(10)
    expected = own[members[0]].copy()
    for rank in members[1:]:
        expected += own[rank]
    assert {total.tobytes() for total in totals.values()} == {expected.tobytes()}


@pytest.mark.parametrize(("source", "stale"), [(0, (1, 2, 3, 4)), (3, (1, 4)), (2, ())])
def test_those_that_do_not_have_x_get_a_copy_from_the_manager_or_from_a_worker(
    ranks: list[Links], source: int, stale: tuple[int, ...]
) -> None:
    route, copies = Route(0, (1, 2, 3, 4), 4, source, stale), dict[int, object]()
    update = Momentum(0.1)
    x = update(np.ones(SIZE), np.ones(SIZE))
    copy = closed(x, update)

    def work(rank: int) -> None:
        copies[rank] = SharingChain(ranks[rank], route, rank).pass_copy(lambda: copy, patient)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in route.ranks]
    for thread in threads:
        thread.start()
    if source == 0:
        send_copy(ranks[0], route, copy, patient)
    for thread in threads:
        thread.join(10)
    came = {rank: opened(data) for rank, data in copies.items() if isinstance(data, np.ndarray)}
    assert sorted(came) == list(stale)
    for state in came.values():
        assert state["x"].tobytes() == x.tobytes()
        assert state["v"].tobytes() == update.state()["v"].tobytes()


def test_a_copy_moves_only_when_the_round_is_known_to_be_complete() -> None:
    own, other = Copy(Momentum(0.5)), Momentum(0.5)
    own.take(closed(np.ones(3), Momentum(0.5)))
    first, second = np.array([2.0, 4.0, 6.0]), np.array([8.0, 8.0, 8.0])
    own.keep(1, 2, first.copy())
    x = other(np.ones(3), first / 2)
    assert own.at(1).tolist() == x.tolist()  # the order of round 2 has come
    own.keep(2, 2, np.zeros(3))
    assert own.at(1).tolist() == x.tolist()  # round 2 was given up
    own.keep(2, 2, second.copy())
    assert own.at(1).tolist() == x.tolist()  # the manager looks at the point before round 2 is complete
    assert own.at(2).tolist() == other(x, second / 2).tolist()


def test_a_gradient_in_fortran_order_moves_a_copy_like_any_other(ranks: list[Links]) -> None:
    x, g = np.ones((90, 70)), np.arange(90 * 70.0).reshape(90, 70)
    own = Passing(ranks[3], 3, lambda *_, **__: None, lambda: False, lambda: False, Momentum(0.5))
    own.copy.take(closed(x, Momentum(0.5)))
    route, flags = Route(0, (3,), budget=1).packed(), EXCHANGED | REPLICATED
    own.begin(Message(0, ORDER, 1, 1, 1, NOWHERE, NOWHERE, flags, [], route.view(np.uint8)))
    own.deliver([0.1], np.asfortranarray(g))
    receive_tokens(ranks[0], Route(0, (3,), budget=1), patient)
    assert own.copy.at(1).tolist() == Momentum(0.5)(x, g).tolist()
