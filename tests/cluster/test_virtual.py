"""The virtual cluster keeps the contract, exactly and for very many workers."""

from collections.abc import Callable

import numpy as np
import pytest

from mpi_ata import ATAEmpirical, DrawnTimes, Quadratic, Sqrt, Task, VirtualCluster
from mpi_ata.arrays import Array
from mpi_ata.cluster import Cluster
from mpi_ata.methods import SGD, Plain
from tests.cluster.contract import CHECKS, UNITS, at, scene


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(check: Callable[[Cluster, float], None]) -> None:
    problem, times = scene(unit=2.0)
    check(VirtualCluster(problem, times, seed=3), 2.0)


def test_the_clock_shows_exactly_the_drawn_times() -> None:
    problem, times = scene(unit=1.0)
    cluster = VirtualCluster(problem, times)
    cluster.start(np.arange(3), at(0.0), 1, np.array([5, 1, 1]), together=True)
    assert [(cluster.wait().worker, cluster.now()) for _ in range(3)] == [(1, 2.0), (0, 5.0), (2, 5.0)]
    assert cluster.worker_time.tolist() == [5 * UNITS[0], UNITS[1], UNITS[2]]


def test_stopped_work_is_never_computed() -> None:
    computed = []

    class Counting:
        x0 = np.zeros(1)

        def gradient(self, x: Array, task: Task) -> Array:
            computed.append(task.worker)
            return x

    cluster = VirtualCluster(Counting(), scene(unit=1.0)[1])
    cluster.start(np.arange(3), np.zeros(1), 1, 9)
    cluster.wait()
    cluster.stop(np.arange(3))
    assert computed == [0]
    assert cluster.worker_time.tolist() == [1.0, 1.0, 1.0]


def test_a_problem_that_reuses_its_result_does_not_spoil_earlier_ones() -> None:
    class Reusing:
        x0 = np.zeros(1)

        def gradient(self, x: Array, task: Task) -> Array:
            self.x0[0] = task.worker
            return self.x0

    cluster = VirtualCluster(Reusing(), scene(unit=1.0)[1])
    cluster.start(np.arange(3), np.zeros(1), 1)
    assert [arrival.result[0] for arrival in [cluster.wait() for _ in range(3)]] == [0, 1, 2]


def test_a_task_cannot_write_into_the_point() -> None:
    class Writing:
        x0 = np.zeros(1)

        def gradient(self, x: Array, task: Task) -> Array:
            x += 1
            return x

    cluster = VirtualCluster(Writing(), scene(unit=1.0)[1])
    cluster.start(np.arange(1), np.zeros(1), 1)
    with pytest.raises(RuntimeError, match=r"worker 0 failed in round 1:(.|\n)*read-only"):
        cluster.wait()


def test_setup_is_called_once_for_all_simulated_workers() -> None:
    calls = []

    class SetUp(Quadratic):
        def setup(self, worker: int | None, n: int) -> None:
            calls.append((worker, n))

    VirtualCluster(SetUp(), scene(unit=1.0)[1])
    assert calls == [(None, 3)]


def test_a_hundred_thousand_workers_run() -> None:
    n = 100_000
    times = DrawnTimes(Sqrt(n), seed=1)
    problem = Quadratic(dimension=10)
    method = SGD(problem.x0, ATAEmpirical(n, budget=1000), Plain(0.4))
    cluster = VirtualCluster(problem, times, seed=1)
    rounds = [method.step(cluster) for _ in range(3)]
    assert [int(round.used.sum()) for round in rounds] == [1000] * 3
    cluster.start(np.arange(n), problem.x0, 4, 2)
    cluster.wait()
    assert cluster.stop(np.arange(n)).shape == (n,)
    assert cluster.undelivered.sum() == n
