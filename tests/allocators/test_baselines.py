"""The allocators of other publications: m-sync, bandit and proportional."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata.allocators import Allocator, ATAEmpirical, Bandit, MSync, Proportional
from mpi_ata.allocators.baselines import rounded
from mpi_ata.arrays import IntArray, State
from tests.allocators.scene import everyone


def observe_all(allocator: Allocator, quota: IntArray, seconds: list[float]) -> None:
    """Let each worker finish its quota, with tasks of its own length."""
    for worker in np.flatnonzero(quota).tolist():
        allocator.observe(worker, [seconds[worker]] * quota.item(worker))


def known_of(tasks: list[int], seconds: list[float], unfinished: list[float]) -> State:
    return {"tasks": np.array(tasks), "seconds": np.array(seconds), "unfinished": np.array(unfinished)}


@pytest.mark.parametrize(
    ("n", "budget", "m", "share"),
    [(8, 3, None, 1), (8, 8, None, 2), (8, 8, 8, 1), (3, 5, None, 3), (3, 5, 3, 2), (1, 5, None, 5)],
)
def test_m_sync_gives_everyone_the_share_of_one_of_the_m_fastest(
    n: int, budget: int, m: int | None, share: int
) -> None:
    allocator = MSync(n, budget, m)
    assert allocator.allocate(everyone(allocator)).tolist() == [share] * n


def test_m_sync_raises_the_shares_where_fewer_than_m_workers_are_left() -> None:
    allocator = MSync(4, 6, m=3)
    assert allocator.allocate(np.array([True, False, True, True])).tolist() == [2, 0, 2, 2]
    assert allocator.allocate(np.array([True, False, False, True])).tolist() == [3, 0, 0, 3]


@pytest.mark.parametrize("count", [0, 5, -1])
def test_numbers_of_workers_that_there_are_not_are_rejected_by_value(count: int) -> None:
    with pytest.raises(ValueError, match=f"m={count} must be from 1 to the number of workers, 4"):
        MSync(4, 6, m=count)
    with pytest.raises(ValueError, match=f"picks={count} must be from 1 to the number of workers, 4"):
        Bandit(4, 6, picks=count)


def test_the_bandit_tries_everyone_before_it_tries_anyone_again() -> None:
    allocator, seconds = Bandit(6, 5, picks=2), [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    quotas = []
    for _ in range(3):
        quotas.append(allocator.allocate(everyone(allocator)))
        observe_all(allocator, quotas[-1], seconds)
    assert np.array_equal(quotas, [[3, 2, 0, 0, 0, 0], [0, 0, 3, 2, 0, 0], [0, 0, 0, 0, 3, 2]])


def test_the_bandit_picks_the_least_lower_bounds_and_gives_them_equal_shares() -> None:
    allocator, same = Bandit(4, 7, picks=2), ATAEmpirical(4, 7)
    for each in (allocator, same):
        each.k, each.K, each.T = 9, np.full(4, 400), 400 * np.array([3.0, 1.0, 4.0, 2.0])
    quota = allocator.allocate(everyone(allocator))
    same.k += 1
    bounds = same.bounds()
    assert (bounds > 0).all()
    assert np.argsort(bounds).tolist() == [1, 3, 0, 2]
    assert quota.tolist() == [0, 4, 0, 3], "the remainder goes to the fastest"
    allocator.K[2] = 4  # so little is known of worker 2 that its bound is 0
    allocator.T[2] = 16.0
    assert allocator.allocate(everyone(allocator)).tolist() == [0, 3, 4, 0]
    assert allocator.allocate(np.array([True, False, False, True])).tolist() == [3, 0, 0, 4]
    assert allocator.allocate(np.array([True, False, False, False])).tolist() == [7, 0, 0, 0]


@pytest.mark.parametrize(("gain", "shares"), [(1.0, [4.5, 2.25]), (0.5, [3.75, 2.625])])
def test_the_controller_by_hand(gain: float, shares: list[float]) -> None:
    allocator = Proportional(2, 6, gain)
    quota = allocator.allocate(everyone(allocator))
    assert quota.tolist() == [3, 3]
    observe_all(allocator, quota, [1.0, 2.0])
    # The shares take 3 and 6 seconds, 4.5 on average.  Worker 0 has 1.5 seconds left, which is 1.5 tasks;
    # worker 1 needs 1.5 seconds too much, 0.75 tasks.  Shares 4.5 and 2.25 become 4 and 2 of 6 tasks.  With a
    # gain of 1/2 they change half as much.
    quota = allocator.allocate(everyone(allocator))
    assert allocator.b == pytest.approx(6 * np.array(shares) / sum(shares))
    assert quota.tolist() == [4, 2]


def test_the_controller_smooths_times_and_averages_the_first() -> None:
    allocator = Proportional(1, 1, smoothing=0.25)
    for seconds in ([4.0], [6.0, 10.0], [3.0], [5.0], [15.0]):
        allocator.observe(0, seconds)
    # 4; the mean of 4 and 8, 6; of three orders 5; of four 5; then a quarter of the way to 15.
    assert allocator.t[0] == pytest.approx(7.5)


def test_the_controller_counts_stopped_tasks_as_time_of_the_next_result() -> None:
    allocator = Proportional(2, 4)
    allocator.observe(0, (), [2.0])
    allocator.observe(0, (), [1.5])
    assert allocator.K.tolist() == [0, 0]
    allocator.observe(0, [1.0, 1.5])
    assert (allocator.K.tolist(), allocator.t[0], allocator.spent[0]) == ([1, 0], 3.0, 0.0)


def test_shares_below_one_task_are_right_on_average_and_nobody_is_forgotten() -> None:
    n, rounds = 8, 4000
    allocator, means = Proportional(n, 3, seed=2), [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
    counts = np.zeros(n)
    for k in range(rounds + 100):
        quota = allocator.allocate(everyone(allocator))
        observe_all(allocator, quota, means)
        counts += quota * (k >= 100)  # by then everyone was measured
    expected = 3 / np.array(means) / np.sum(1 / np.array(means))
    # Each quota is the share rounded up or down: a variance of at most 1/4, and rounds are independent.
    assert counts / rounds == pytest.approx(expected, abs=5 * math.sqrt(0.25 / rounds))


@given(
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40),
    st.integers(1, 10**9),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_rounded_shares_are_whole_and_sum_to_the_budget(shares: list[float], budget: int, u: float) -> None:
    parts = np.array(shares) * (budget / math.fsum(shares))
    counts = rounded(np.array(shares), budget, u)
    assert counts.sum() == budget
    assert counts.min() >= 0
    assert (abs(counts - parts) < 1 + 1e-6).all()


@pytest.mark.parametrize(("name", "value"), [("gain", 0.0), ("gain", 1.5), ("smoothing", -0.1)])
def test_wrong_settings_of_the_controller_are_rejected_by_value(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}={value} must be above 0 and at most 1"):
        Proportional(2, 6, **{name: value})


def test_the_controller_starts_from_what_earlier_runs_measured() -> None:
    allocator = Proportional(2, 6)
    allocator.inherit(7, known_of([5, 10], [4.0, 20.0], [1.0, 0.0]))
    assert (allocator.k, allocator.t.tolist()) == (7, [1.0, 2.0])
    assert allocator.allocate(everyone(allocator)).tolist() == [4, 2]
    allocator = Proportional(3, 9)
    allocator.inherit(1, known_of([1, 1, 0], [1.0, 1.0, 0.0], [0.0] * 3))
    assert allocator.allocate(everyone(allocator)).tolist() == [3, 3, 3], (
        "who was not measured keeps its share"
    )


def test_tasks_that_take_no_time_break_nothing() -> None:
    allocator = Proportional(2, 6)
    for _ in range(5):
        quota = allocator.allocate(everyone(allocator))
        assert quota.sum() == 6
        observe_all(allocator, quota, [0.0, 0.0])
