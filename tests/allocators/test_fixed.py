"""UTA, OFTA and GTA, and what every allocator rejects."""

import inspect
import math
from typing import Any

import numpy as np
import pytest

from mpi_ata.allocators import GTA, OFTA, UTA
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.job.component import ALLOCATORS
from tests.allocators.scene import everyone


def build(name: str, n: int, budget: int) -> Any:
    """Return any allocator, with whatever else it needs."""
    wanted = inspect.signature(ALLOCATORS[name]).parameters
    known: dict[str, Any] = {"alpha": 1.0, "means": np.arange(1.0, max(n, 1) + 1), "seed": 0}
    return ALLOCATORS[name](n=n, budget=budget, **{key: known[key] for key in known if key in wanted})


@pytest.mark.parametrize(("n", "budget"), [(1, 1), (3, 3), (3, 7), (5, 23), (10, 4), (1000, 3)])
def test_uta_gives_equal_shares_and_the_remainder_to_some(n: int, budget: int) -> None:
    allocator = UTA(n, budget)
    for _ in range(10):
        quota = allocator.allocate(everyone(allocator))
        assert quota.dtype == np.int64
        assert sorted(quota.tolist()) == [budget // n] * (n - budget % n) + [budget // n + 1] * (budget % n)


def test_uta_draws_the_remainder_in_each_round_and_evenly() -> None:
    allocator, rounds = UTA(7, 17, seed=5), 4000
    quotas = np.array([allocator.allocate(everyone(allocator)) for _ in range(rounds)])
    assert len(np.unique(quotas[:20], axis=0)) > 10
    # Five standard errors of the frequency 3 / 7.
    tolerance = 5 * math.sqrt(3 / 7 * 4 / 7 / rounds)
    assert (quotas - 2).mean(axis=0) == pytest.approx(3 / 7, abs=tolerance)


def test_ofta_repeats_the_quota_that_is_best_for_the_true_means() -> None:
    allocator = OFTA(3, 7, [4.0, 1.0, 2.0])
    for _ in range(3):
        assert allocator.allocate(everyone(allocator)).tolist() == [1, 4, 2]
        allocator.observe(0, [0.001])
    available = np.array([True, False, True])
    best = recursive_allocation([4.0, 2.0], 7).tolist()
    assert allocator.allocate(available).tolist() == [best[0], 0, best[1]], "of those who are there"
    assert allocator.allocate(everyone(allocator)).tolist() == [1, 4, 2]


@pytest.mark.parametrize("means", [[1.0], [1.0, 2.0, 3.0]])
def test_ofta_rejects_means_for_another_number_of_workers(means: list[float]) -> None:
    with pytest.raises(ValueError, match=f"each of the 2 workers, not {len(means)}"):
        OFTA(2, 5, means)


def test_gta_gives_everyone_the_whole_budget() -> None:
    allocator = GTA(4, 23)
    for _ in range(3):
        quota = allocator.allocate(everyone(allocator))
        assert quota.tolist() == [23] * 4
        assert quota.dtype == np.int64
        allocator.observe(2, [1.0], [0.5], 0.1)


@pytest.mark.parametrize("name", sorted(ALLOCATORS))
def test_every_allocator_has_its_number_of_workers_and_its_budget_and_meets_it(name: str) -> None:
    allocator = build(name, 2, 5)
    assert (allocator.n, allocator.budget) == (2, 5)
    quota = allocator.allocate(everyone(allocator))
    assert quota.shape == (2,)
    assert quota.sum() >= 5


@pytest.mark.parametrize("name", sorted(ALLOCATORS))
@pytest.mark.parametrize(
    ("n", "budget", "named"),
    [(2, 0, "budget=0"), (2, 10**18, f"budget={10**18} must be at most 1,000,000,000"), (0, 5, "n=0")],
)
def test_every_allocator_rejects_numbers_of_workers_and_tasks_that_make_no_sense(
    name: str, n: int, budget: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        build(name, n, budget)


@pytest.mark.parametrize("name", sorted(ALLOCATORS))
@pytest.mark.parametrize("n", [5, 100])
def test_no_allocator_gives_tasks_to_workers_that_are_not_available(name: str, n: int) -> None:
    allocator = build(name, n, 2 * n)
    available = np.arange(n) % 3 > 0
    for _ in range(20):
        quota = allocator.allocate(available)
        assert not quota[~available].any()
        assert quota.sum() >= 2 * n
        assert quota.dtype == np.int64
        for worker in np.flatnonzero(quota).tolist():
            allocator.observe(worker, [1.0 + worker])
    assert allocator.allocate(everyone(allocator))[~available].any(), "they get tasks when they are back"
