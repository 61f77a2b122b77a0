"""ATA and ATA-Empirical: their bounds as the paper writes them, and what they learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata.allocators import ATA, OFTA, ATAEmpirical
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.job.component import LAWS
from mpi_ata.times import DrawnTimes
from tests.allocators.scene import everyone, play_tasks

Make = Callable[[int, int, float, int], LowerBoundAllocator]

both = pytest.mark.parametrize("make", [ATA, ATAEmpirical])


def bound(make: Make, width: float, k: int, seconds: list[float]) -> float:
    """Return the bound of the paper, with alpha or eta as width."""
    if not (K := len(seconds)):
        return 0.0
    log, mean = math.log(2 * k * k), math.fsum(seconds) / K
    doubt = 2 * width * (math.sqrt(log / K) + log / K)
    return max(0.0, mean - doubt if make is ATA else mean * (1 - doubt))


def after_rounds(make: Make, n: int, width: float, rounds: int) -> LowerBoundAllocator:
    allocator = make(n, 5, width, 0)
    for _ in range(rounds):
        allocator.allocate(everyone(allocator))
    return allocator


@both
@given(
    samples=st.lists(st.lists(st.floats(0.1, 10.0), max_size=30), min_size=1, max_size=5),
    width=st.sampled_from([0.001, 0.01, 0.1, 1.0]),
    rounds=st.integers(1, 20),
)
def test_the_bounds_are_those_of_the_paper(
    make: Make, samples: list[list[float]], width: float, rounds: int
) -> None:
    allocator = after_rounds(make, len(samples), width, rounds)
    for worker, seconds in enumerate(samples):
        allocator.observe(worker, seconds)
    wanted = [bound(make, width, rounds, seconds) for seconds in samples]
    assert allocator.bounds() == pytest.approx(wanted, rel=1e-12, abs=1e-13)


@both
def test_untried_workers_get_the_bound_0_even_if_a_task_of_theirs_was_stopped(make: Make) -> None:
    allocator = after_rounds(make, 3, 1e-6, 1)
    allocator.observe(0, [5.0])
    allocator.observe(2, [], stopped=[1000.0])
    bounds = allocator.bounds()
    assert bounds[0] > 0.0
    assert bounds[1:].tolist() == [0.0, 0.0]


@both
def test_k_counts_rounds_and_widens_the_bounds(make: Make) -> None:
    allocator = after_rounds(make, 2, 0.1, 3)
    for worker in (0, 1, 0, 1):
        allocator.observe(worker, [3.0] * 6)  # twice, but in one round
    before = allocator.bounds()
    allocator.allocate(everyone(allocator))
    assert allocator.state()["k"] == 4
    assert (allocator.bounds() < before).all()


@both
def test_the_seed_decides_who_is_tried_first_and_untried_workers_are_drawn_in_each_round(make: Make) -> None:
    first, again, other = (
        [tuple(allocator.allocate(everyone(allocator)).tolist()) for _ in range(20)]
        for allocator in (make(30, 5, 0.5, 1), make(30, 5, 0.5, 1), make(30, 5, 0.5, 2))
    )
    assert first == again != other
    assert len(set(first)) > 15


@pytest.mark.parametrize(
    ("make", "width"), [(ATA, 0.02), (ATA, 0.2), (ATAEmpirical, 0.01), (ATAEmpirical, 0.05)]
)
def test_with_constant_times_the_quotas_become_those_of_the_oracle(make: Make, width: float) -> None:
    means = [2.3, 1.0, 50.0, 7.7, 3.1]
    quotas = play_tasks(make(5, 10, width, 0), DrawnTimes(LAWS["constant"](5, means)), range(1, 601))
    wanted = OFTA(5, 10, means).allocate(np.ones(5, np.bool_)).tolist()
    assert quotas[0] != wanted
    # Bounds sink as ln k grows, so that a slow worker is tried again now and then, forever.
    assert quotas[-200:].count(wanted) >= 190


@pytest.mark.parametrize("width", [0.0, -1.0, math.nan])
@pytest.mark.parametrize(("make", "name"), [(ATA, "alpha"), (ATAEmpirical, "eta")])
def test_a_width_that_is_not_above_0_is_rejected_by_value(make: Make, name: str, width: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={width}"):
        make(2, 2, width, 0)


@pytest.mark.parametrize(("counted", "seconds"), [(False, 3.5), (True, 4.25)])
def test_stopped_tasks_add_time_but_no_task_and_overhead_where_the_allocator_wants_it(
    counted: bool, seconds: float
) -> None:
    allocator = ATAEmpirical(2, 3, overhead=counted)
    allocator.observe(1, [1.0, 2.0], [0.5], 0.75)
    assert (allocator.K.tolist(), allocator.T.tolist()) == ([0, 2], [0.0, seconds])
