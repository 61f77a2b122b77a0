"""Minibatch SGD on the virtual cluster."""

import re
from typing import Any

import numpy as np
import pytest

from mpi_ata.allocators import GTA, Allocator
from mpi_ata.arrays import LARGE
from mpi_ata.clusters import Arrival, Cluster, Lost, VirtualCluster
from mpi_ata.errors import RunError
from mpi_ata.methods import SGD
from mpi_ata.methods.collector import Sum
from mpi_ata.problems import Quadratic
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, cluster_of, counts


def test_a_fixed_quota_is_done_to_the_letter() -> None:
    problem, allocator = Ramp(), Fixed([3, 1, 0])
    cluster = cluster_of(problem, [1.0, 4.0, 9.0])
    method = SGD(problem.x0, allocator, Plain(0.5))
    # The sum of the gradients is 3 (8, 1) + (8, 2), their mean (8, 1.25); the next round starts there.
    for k, x in [(1, [4.0, -0.625]), (2, [2.0, -1.25])]:
        round = method.step(cluster)
        assert method.x.tolist() == x
        assert (method.k, round.number, round.quota.tolist()) == (k, k, [3, 1, 0])
        assert counts(round) == ([3, 1, 0], [3, 1, 0], [0, 0, 0], [0, 0, 0])
        assert (round.duration, round.waste, cluster.now()) == (4.0, 0.0, 4.0 * k)
        assert cluster.ledger.worker_time.tolist() == [3.0 * k, 4.0 * k, 0.0]
        assert allocator.diary == [(0, [1.0, 1.0, 1.0], []), (1, [4.0], [])] * k


def test_greedy_rounds_use_the_first_arrivals_and_stop_the_rest() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 1.75, 4.0])
    method = SGD(problem.x0, GTA(3, 4), Plain(0.5))
    for k, x in [(1, [4.0, -0.625]), (2, [2.0, -1.25])]:
        round = method.step(cluster)
        # Tasks arrive at 1 (worker 0), 1.75 (1), 2 (0) and 3 (0); everyone has begun another by then,
        # worker 1 at 1.75 and worker 2 at 0.
        assert method.x.tolist() == x
        assert counts(round) == ([4, 2, 1], [3, 1, 0], [1, 1, 1], [0, 0, 0])
        assert (round.duration, round.waste) == (3.0, 1.25 + 3.0)
        # Everyone is busy throughout: worker time is n times the duration.
        assert cluster.ledger.worker_time.tolist() == [3.0 * k] * 3


def test_the_allocator_learns_the_time_spent_on_stopped_tasks() -> None:
    problem, allocator = Ramp(), Fixed([4, 4, 4], budget=4)
    SGD(problem.x0, allocator, Plain(0.5)).step(cluster_of(problem, [1.0, 1.75, 4.0]))
    arrived, stopped = allocator.diary[:4], allocator.diary[4:]
    assert arrived == [(0, [1.0], []), (1, [1.75], []), (0, [1.0], []), (0, [1.0], [])]
    assert stopped == [(0, [], [0.0]), (1, [], [1.25]), (2, [], [3.0])]


@pytest.mark.parametrize("result", [[1.0], [[1.0, 2.0]], 1.0])
@pytest.mark.parametrize("allocator", [Fixed([1, 1]), Fixed([3, 2]), GTA(2, 3)])
def test_a_gradient_whose_shape_is_not_that_of_x_is_rejected(result: Any, allocator: Allocator) -> None:
    problem = Ramp()
    problem.gradient = lambda x, task: np.array(result)  # type: ignore[method-assign]
    with pytest.raises(RunError, match=rf"shape {re.escape(str(np.shape(result)))}.*\(2,\)"):
        SGD(problem.x0, allocator, Plain(0.5)).step(cluster_of(problem, [1.0, 2.0]))


def test_with_a_fixed_quota_the_order_of_arrival_does_not_show() -> None:
    seconds = [float(i) for i in range(1, 9)]
    runs, orders = [], []
    for law in (seconds, seconds[::-1]):
        problem, allocator = Quadratic(20, noise=1.0), Fixed([2] * 8)
        cluster, method = cluster_of(problem, law, seed=4), SGD(problem.x0, allocator, Plain(0.3))
        for _ in range(5):
            method.step(cluster)
        runs.append(method.x.tobytes())
        orders.append([worker for worker, _, _ in allocator.diary[:8]])
    assert orders[0] == orders[1][::-1]
    assert runs[0] == runs[1]


def test_means_of_large_results_are_those_of_small_ones() -> None:
    results = np.random.default_rng(2).standard_normal((3, 2 * LARGE)).astype(np.float32)
    g, part = Sum(np.arange(3)), Sum(np.arange(3))
    for worker in (2, 0, 1):
        g.add(worker, results[worker].copy())
        part.add(worker, results[worker, :5].copy())
    expected = ((results[0] + results[1]) + results[2]) / 7
    assert g.mean(7).tobytes() == expected.tobytes()
    assert part.mean(7).tobytes() == expected[:5].tobytes()


@pytest.mark.parametrize("numbers", [1, 2, 33])
def test_results_that_come_at_once_are_added_in_the_same_order_as_one_by_one(numbers: int) -> None:
    rows = np.random.default_rng(numbers).standard_normal((40, numbers)) * 10.0 ** np.arange(40)[:, None]
    at_once, one_by_one = Sum(np.arange(40)), Sum(np.arange(40))
    assert at_once.add_all([Arrival(i, rows[i].copy(), [1.0]) for i in np.roll(range(40), 7).tolist()])
    for worker in reversed(range(40)):
        one_by_one.add(worker, rows[worker].copy())
    assert at_once.mean(40).tolist() == one_by_one.mean(40).tolist()


def test_only_the_results_of_all_workers_are_added_at_once() -> None:
    arrivals = [Arrival(i, np.ones(1), [1.0]) for i in range(2)]
    assert not Sum(np.arange(3)).add_all(arrivals)
    assert not Sum(np.arange(3)).add_all([*arrivals, Lost(2, 1, "it died")])
    assert not Sum().add_all(arrivals)


class OneByOne:
    """A cluster of a user's own: what the protocol asks for, and no more."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        if name not in {*vars(Cluster), *Cluster.__annotations__}:
            raise AttributeError(name)
        return getattr(self._cluster, name)


@pytest.mark.parametrize("allocator", [Fixed([2, 1, 1]), GTA(3, 4)])
def test_a_cluster_that_delivers_one_by_one_gives_the_same_round(allocator: Allocator) -> None:
    found = []
    for kind in (lambda cluster: cluster, OneByOne):
        method = SGD(Ramp().x0, allocator, Plain(0.5))
        round = method.step(kind(cluster_of(Ramp(), [1.0, 2.0, 3.0])))
        found.append((method.x.tolist(), counts(round), round.duration))
    assert found[0] == found[1]
