"""Queues of workers that jobs share, speeds of pairs, and how a round is divided."""

import numpy as np
import pytest

from mpi_ata.clusters.farm import shares
from mpi_ata.clusters.sharing import PairSpeeds, QueuedOrder, Queues, Sharing


def test_a_backlog_is_what_is_left_of_the_first_order_and_all_others() -> None:
    queues, first, second = Queues(2), object(), object()
    queues.append(0, QueuedOrder(first, 4.0), now=10.0)
    queues.append(0, QueuedOrder(second, 3.0), now=11.0)
    assert queues.backlog(11.0).tolist() == [6.0, 0.0]
    assert queues.remove(0, first, now=13.0)
    assert queues.backlog(13.0).tolist() == [3.0, 0.0]
    assert queues.remove(0, second, now=16.0)
    assert not queues.remove(0, second, now=16.0)
    assert queues.backlog(16.0).tolist() == [0.0, 0.0]


def test_an_order_that_is_late_is_expected_to_take_longer_the_later_it_is() -> None:
    queues = Queues(1)
    queues.append(0, QueuedOrder(object(), 2.0), now=0.0)
    backlog = [queues.backlog(now).item() for now in (0.0, 1.9, 4.0, 40.0)]
    assert backlog == [2.0, 1.0, 2.0, 38.0]


def test_an_order_behind_others_can_be_withdrawn() -> None:
    queues, jobs = Queues(1), [object() for _ in range(3)]
    for job in jobs:
        queues.append(0, QueuedOrder(job, 1.0), now=0.0)
    queues.remove(0, jobs[1], now=0.5)
    assert [queued.job for queued in queues.lines[0]] == [jobs[0], jobs[2]]
    assert queues.backlog(0.5).tolist() == [1.5]


def learned(speeds: PairSpeeds, problem: str, tasks: list[int], means: list[float]) -> None:
    seconds = np.array(tasks) * np.array(means)
    speeds.learn(problem, np.array([tasks, seconds, seconds * np.array(means)], np.float64))


def test_a_worker_that_has_done_nothing_is_taken_for_an_average_one() -> None:
    speeds = PairSpeeds(3)
    assert speeds.means("a").tolist() == [1.0, 1.0, 1.0]
    learned(speeds, "a", [100, 100, 0], [1.0, 3.0, 0.0])
    assert speeds.means("a").tolist() == pytest.approx([1.0, 3.0, 2.0], rel=0.01)


def test_what_other_problems_have_shown_of_a_worker_counts_for_one_task() -> None:
    speeds = PairSpeeds(2)
    learned(speeds, "short", [200, 200], [1.0, 4.0])
    learned(speeds, "long", [200, 0], [10.0, 0.0])
    assert speeds.means("long").tolist() == pytest.approx([10.0, 40.0], rel=0.02)
    learned(speeds, "long", [0, 200], [0.0, 15.0])  # which is not four times as slow here
    assert speeds.means("long")[1] == pytest.approx(15.0, rel=0.05)


def test_speeds_that_change_are_learned_again() -> None:
    speeds = PairSpeeds(1)
    learned(speeds, "a", [10_000], [1.0])
    for _ in range(60):
        learned(speeds, "a", [20], [5.0])
    assert speeds.means("a").item() == pytest.approx(5.0, rel=0.05)


def test_a_round_is_done_at_most_a_task_later_than_if_tasks_could_be_split() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n, count = rng.integers(1, 20), int(rng.integers(1, 60))
        ready, means = rng.exponential(5.0, n) * rng.integers(0, 2, n), rng.uniform(0.1, 9.0, n)
        a = shares(ready, means, count)
        assert a.sum() == count
        end = np.max((ready + a * means)[a > 0])
        assert np.all(ready + (a + 1) * means >= end - 1e-9)  # nobody could have taken the last task sooner


def test_as_many_jobs_run_at_once_as_keep_the_workers_busy() -> None:
    sharing = Sharing(10)
    sums = np.array([np.full(10, 100.0), np.full(10, 100.0), np.full(10, 100.0)])
    sharing.speeds.learn("a", sums)
    assert [sharing.at_once("a", budget, jobs=100) for budget in (1, 2, 5, 50)] == [40, 20, 8, 4]
    assert sharing.at_once("a", budget=50, jobs=7) == 7
