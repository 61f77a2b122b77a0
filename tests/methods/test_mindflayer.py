"""Minibatch SGD whose tasks have time limits."""

import numpy as np
import pytest

from mpi_ata.allocators import GTA
from mpi_ata.arrays import Array
from mpi_ata.clusters import Arrival, Back, Lost, VirtualCluster
from mpi_ata.methods import SGD, MindFlayer
from mpi_ata.times import DrawnTimes
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, cluster_of, counts


class Scripted:
    """A law whose workers take these seconds, one entry after the other, then the last one."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.n, self.means = len(rows), np.array([np.mean(row) for row in rows])
        self._rows, self._next = rows, 0

    def draw(self, rng: np.random.Generator) -> Array:
        number, self._next = self._next, self._next + 1
        return np.array([row[min(number, len(row) - 1)] for row in self._rows])


class Rarely:
    """A law where one task in ten takes a hundred times as long."""

    def __init__(self, n: int) -> None:
        self.n, self.means = n, np.full(n, 0.9 + 0.1 * 100.0)

    def draw(self, rng: np.random.Generator) -> Array:
        return np.where(rng.random(self.n) < 0.1, 100.0, 1.0)


def test_a_round_by_hand() -> None:
    problem, allocator = Ramp(), Fixed([3, 1])
    cluster = VirtualCluster(problem, DrawnTimes(Scripted([[1.0, 9.0, 1.0], [5.0]])))
    method = MindFlayer(problem.x0, 2, allocator, Plain(0.5), limit=2.0)
    round = method.step(cluster)
    # Worker 0 delivers at 1, so a task of it may take 2 seconds: the next would take 9 and is stopped at 3.
    # The mean of a result is now 3 seconds.  It delivers at 4 and at 5, when worker 1 delivers its first.
    assert counts(round) == ([4, 1], [3, 1], [1, 0], [0, 0])
    assert (round.duration, round.waste) == (5.0, 2.0)
    assert method.x.tolist() == [4.0, -0.5 * (3 * 1 + 2) / 4]
    assert allocator.diary[:2] == [(0, [1.0], []), (0, [], [2.0])]
    assert sorted(allocator.diary[2:]) == [(0, [1.0], []), (0, [1.0], []), (1, [5.0], [])]
    assert cluster.ledger.worker_time.tolist() == [5.0, 5.0]
    assert method.limits().tolist() == [2 * 5.0 / 3, 2 * 5.0]
    assert cluster.idle().tolist() == [0, 1]


def test_without_late_tasks_it_is_sgd() -> None:
    ends = []
    for make in (
        lambda x0, allocator: MindFlayer(x0, 3, allocator, Plain(0.5)),
        lambda x0, allocator: SGD(x0, allocator, Plain(0.5)),
    ):
        problem, allocator = Ramp(), Fixed([3, 2, 1])
        cluster = cluster_of(problem, [1.0, 1.5, 3.5])
        method = make(problem.x0, allocator)
        rounds = [method.step(cluster) for _ in range(4)]
        ends.append((method.x.tolist(), cluster.now(), [counts(round) for round in rounds]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("seconds", [[1.0, 2.0], [0.0, 3.0]], ids=["at the limit", "after no time"])
def test_a_task_that_ends_at_its_limit_counts_and_no_time_sets_none(seconds: list[float]) -> None:
    problem = Ramp()
    cluster = VirtualCluster(problem, DrawnTimes(Scripted([seconds])))
    round = MindFlayer(problem.x0, 1, Fixed([2]), Plain(0.5), limit=2.0).step(cluster)
    assert counts(round) == ([2], [2], [0], [0])
    assert round.duration == 3.0


def test_greedy_rounds_end_with_the_last_result_and_stop_the_rest() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 1.75, 4.0])
    round = MindFlayer(problem.x0, 3, GTA(3, 4), Plain(0.5)).step(cluster)
    # As with sgd, but worker 0 begins no task when it delivers the last result at 3.
    assert counts(round) == ([3, 2, 1], [3, 1, 0], [0, 1, 1], [0, 0, 0])
    assert (round.duration, round.waste) == (3.0, 1.25 + 3.0)
    assert cluster.idle().tolist() == [0, 1, 2]


def test_limits_that_are_too_short_grow() -> None:
    problem = Ramp()
    cluster = VirtualCluster(problem, DrawnTimes(Scripted([[1e-3, 50.0]])))
    method = MindFlayer(problem.x0, 1, Fixed([2]), Plain(0.5), limit=2.0)
    round = method.step(cluster)
    # The limit triples with each task that it stops, from 0.002: 3^10 of it exceed 50.
    assert round.wasted.tolist() == [10]
    assert method.limits()[0] > 50.0


def test_rounds_are_shorter_where_few_tasks_take_very_long() -> None:
    clocks = []
    for limited in (True, False):
        problem, allocator = Ramp(), Fixed([2] * 8)
        cluster = VirtualCluster(problem, DrawnTimes(Rarely(8), seed=3))
        plain = Plain(0.01)
        method = MindFlayer(problem.x0, 8, allocator, plain) if limited else SGD(problem.x0, allocator, plain)
        for _ in range(200):
            method.step(cluster)
        clocks.append(cluster.now())
    # Of 16 tasks one is long in 81 % of all rounds, so these take 100 seconds or more.  A limit of at most a
    # few seconds leaves rounds of about 10 seconds at most.
    assert clocks[1] > 200 * 80
    assert clocks[0] < 200 * 20


def test_another_number_of_workers_resumes_without_limits() -> None:
    problem = Ramp()
    first = MindFlayer(problem.x0, 2, Fixed([2, 1]), Plain(0.5))
    first.step(cluster_of(problem, [1.0, 2.0]))
    second = MindFlayer(problem.x0, 3, Fixed([1, 1, 1]), Plain(0.5))
    second.restore(first.state())
    assert (second.k, second.x.tolist()) == (1, first.x.tolist())
    assert second.limits().tolist() == [np.inf] * 3


def test_a_worker_that_is_reported_back_in_its_first_task_keeps_it() -> None:
    class Returning(VirtualCluster):
        """Reports once, in the middle of a round, that worker 0 is back from a trial before it."""

        reports = 1

        def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
            if self.reports:
                self.reports = 0
                return Back(0, [1.0], "it has answered")
            return super().wait(timeout)

    problem, times = Ramp(), DrawnTimes(Scripted([[9.0], [1.0]]))
    cluster = Returning(problem, times)
    method = MindFlayer(problem.x0, 2, GTA(2, 1), Plain(0.5), limit=20.0)
    rounds = [method.step(cluster), method.step(cluster)]
    assert [counts(round) for round in rounds] == [([1, 1], [0, 1], [1, 0], [0, 0])] * 2
