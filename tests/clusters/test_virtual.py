"""The virtual cluster keeps the contract, exactly and for very many workers."""

from collections.abc import Callable

import numpy as np
import pytest

from mpi_ata import ATAEmpirical, DrawnTimes, Quadratic, Sqrt, Task, VirtualCluster
from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster, Lost
from mpi_ata.methods import SGD
from mpi_ata.updates import Plain
from tests.clusters import unstoppable
from tests.clusters.contract import CHECKS, UNITS, arrival_of, at, scene


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(check: Callable[[Cluster, float], None]) -> None:
    problem, times = scene(unit=2.0)
    check(VirtualCluster(problem, times, seed=3), 2.0)


@pytest.mark.parametrize("check", unstoppable.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_where_tasks_cannot_be_stopped(check: Callable[[Cluster, float], None]) -> None:
    problem, times = scene(unit=2.0, stoppable=False)
    check(VirtualCluster(problem, times, seed=3), 2.0)


def test_a_stopped_task_that_runs_on_does_so_after_a_break_too() -> None:
    def cluster() -> VirtualCluster:
        return VirtualCluster(*scene(unit=1.0, stoppable=False), seed=3)

    c, resumed = cluster(), cluster()
    c.start(np.array([0, 2]), at(0.0), 1)
    c.wait()
    c.stop(np.array([2]))
    resumed.restore(c.state())
    resumed.start(np.array([2]), at(0.0), 2)
    resumed.wait()
    assert resumed.now() == 10.0
    assert resumed.overruns() == {2: 4.0}


def test_the_clock_shows_exactly_the_drawn_times() -> None:
    problem, times = scene(unit=1.0)
    cluster = VirtualCluster(problem, times)
    cluster.start(np.arange(3), at(0.0), 1, np.array([5, 1, 1]), together=True)
    assert [(cluster.wait().worker, cluster.now()) for _ in range(3)] == [(1, 2.0), (0, 5.0), (2, 5.0)]
    assert cluster.ledger.worker_time.tolist() == [5 * UNITS[0], UNITS[1], UNITS[2]]


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
    assert cluster.ledger.worker_time.tolist() == [1.0, 1.0, 1.0]


def test_a_problem_that_reuses_its_result_does_not_spoil_earlier_ones() -> None:
    class Reusing:
        x0 = np.zeros(1)

        def gradient(self, x: Array, task: Task) -> Array:
            self.x0[0] = task.worker
            return self.x0

    cluster = VirtualCluster(Reusing(), scene(unit=1.0)[1])
    cluster.start(np.arange(3), np.zeros(1), 1)
    assert [arrival_of(cluster).result[0] for _ in range(3)] == [0, 1, 2]


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
    assert cluster.ledger.stopped.sum() == n


def test_orders_in_flight_survive_in_another_cluster_bit_for_bit() -> None:
    first, second = (VirtualCluster(*scene(unit=1.0), seed=3) for _ in range(2))
    x = at(1.0)
    first.start(np.array([0]), x, 4, 3)
    first.start(np.array([2]), x, 5, np.array([2]), together=True)
    first.start(np.array([1]), at(2.0), 5)
    first.wait()
    first.stop(np.array([1]))
    first.start(np.array([1]), at(3.0), 5, 2)
    first.wait()
    state = first.state()
    assert state["points"][:, 0].tolist() == [1.0, 3.0], (
        "each point once, and only points that somebody works at"
    )
    second.restore(state)
    for _ in range(4):
        (worker, result, seconds, _), other = arrival_of(first), arrival_of(second)
        assert (worker, result.tolist(), seconds) == (other.worker, other.result.tolist(), other.seconds)
        assert first.now() == second.now()
    assert first.ledger.worker_time.tolist() == second.ledger.worker_time.tolist()
    assert second.idle().tolist() == [0, 1, 2]


def test_a_state_of_other_workers_or_points_is_rejected() -> None:
    cluster = VirtualCluster(*scene(unit=1.0))
    cluster.start(np.arange(3), at(0.0), 1)
    state = cluster.state()
    with pytest.raises(ValueError, match=r"'worker_time' of the state is float64 of shape \(2,\)"):
        cluster.restore(state | {"worker_time": np.zeros(2)})
    with pytest.raises(ValueError, match=r"'points' of the state is float32 of shape \(1, 5\)"):
        cluster.restore(state | {"points": state["points"].astype(np.float32)})
    assert cluster.wait().worker == 0


def dying(deaths: dict[int, float]) -> VirtualCluster:
    """Workers whose tasks take 1, 2 and 5 seconds, and who vanish at these times."""
    return VirtualCluster(*scene(unit=1.0), deaths=deaths)


def test_a_worker_vanishes_with_its_task_in_order_of_time() -> None:
    cluster = dying({1: 3.0, 2: 4.0})
    cluster.start(np.arange(3), at(0.0), 1, np.array([4, 4, 1]))
    found = [(type(each).__name__, each.worker, cluster.now()) for each in (cluster.wait() for _ in range(7))]
    arrivals = [("Arrival", 0, 1.0), ("Arrival", 0, 2.0), ("Arrival", 1, 2.0), ("Arrival", 0, 3.0)]
    assert found == [*arrivals, ("Lost", 1, 3.0), ("Arrival", 0, 4.0), ("Lost", 2, 4.0)]
    assert cluster.available.tolist() == [True, False, False]
    assert cluster.ledger.lost.tolist() == [0, 1, 1]
    assert cluster.ledger.worker_time.tolist() == [4.0, 2.0, 0.0], "nobody reports the time of a lost task"
    assert cluster.idle().tolist() == [0, 1, 2]


def test_tasks_finished_but_not_delivered_are_lost_with_the_one_begun() -> None:
    cluster = dying({0: 2.5})
    cluster.start(np.arange(2), at(0.0), 1, np.array([9, 2]), together=True)
    assert cluster.wait() == Lost(0, 3, "it vanished at 2.5 s on the virtual clock")
    assert cluster.ledger.lost.tolist() == [3, 0, 0]


def test_a_worker_that_dies_idle_is_reported_once_with_no_task() -> None:
    cluster = dying({1: 1.5})
    cluster.start(np.array([2]), at(0.0), 1, 2)
    assert [each.worker for each in (cluster.wait() for _ in range(3))] == [1, 2, 2]
    assert cluster.ledger.lost.tolist() == [0, 0, 0]
    assert cluster.available.tolist() == [True, False, True]


def test_a_lost_worker_cannot_be_started() -> None:
    cluster = dying({1: 0.5})
    cluster.start(np.array([0]), at(0.0), 1)
    assert isinstance(cluster.wait(), Lost)
    with pytest.raises(RuntimeError, match=r"workers \[1\] are lost and cannot be started"):
        cluster.start(np.array([1, 2]), at(0.0), 1)
    assert cluster.wait().worker == 0


def test_nobody_waits_for_a_death_alone() -> None:
    with pytest.raises(RuntimeError, match="nothing is running"):
        dying({1: 0.5}).wait()


def test_a_timeout_passes_no_death() -> None:
    cluster = dying({1: 2.0})
    cluster.start(np.array([2]), at(0.0), 1)
    with pytest.raises(TimeoutError):
        cluster.wait(timeout=1.5)
    assert isinstance(cluster.wait(timeout=1.0), Lost)
    assert cluster.now() == 2.0


def test_deaths_survive_in_another_cluster() -> None:
    first, second = dying({0: 0.5, 1: 2.5}), dying({0: 0.5, 1: 2.5})
    first.start(np.arange(3), at(0.0), 1, 3)
    assert [first.wait().worker for _ in range(2)] == [0, 1]
    second.restore(first.state())
    assert second.available.tolist() == [False, True, True]
    assert [second.wait().worker for _ in range(2)] == [first.wait().worker for _ in range(2)] == [1, 2]
    assert second.ledger.lost.tolist() == [0, 1, 0], "counted since the break"
