"""ATA and ATA-Empirical: their bounds as the paper writes them, and what they learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata.allocators import ATA, OFTA, ATAEmpirical
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.job.component import LAWS
from mpi_ata.times import DrawnTimes, Exponential
from tests.allocators.scene import everyone

Make = Callable[[int, int, float, int], LowerBoundAllocator]
Samples = list[list[float]]

both = pytest.mark.parametrize("make", [ATA, ATAEmpirical])


def bound_of_ata(alpha: float, k: int, seconds: list[float]) -> float:
    K = len(seconds)
    if K == 0:
        return 0.0
    log = math.log(2 * k * k)
    return max(0.0, math.fsum(seconds) / K - 2 * alpha * (math.sqrt(log / K) + log / K))


def bound_of_ata_empirical(eta: float, k: int, seconds: list[float]) -> float:
    K = len(seconds)
    if K == 0:
        return 0.0
    log = math.log(2 * k * k)
    return math.fsum(seconds) / K * max(0.0, 1 - 2 * eta * (math.sqrt(log / K) + log / K))


def after_rounds(make: Make, n: int, width: float, rounds: int) -> LowerBoundAllocator:
    allocator = make(n, 5, width, 0)
    for _ in range(rounds):
        allocator.allocate(everyone(allocator))
    return allocator


def play(allocator: LowerBoundAllocator, times: DrawnTimes, rounds: range) -> list[list[int]]:
    """Return the quotas of some rounds, in which all tasks finish."""
    quotas = []
    for k in rounds:
        quota = allocator.allocate(everyone(allocator)).tolist()
        for worker, count in enumerate(quota):
            if count:
                allocator.observe(worker, times.of(worker, k, 0, count))
        quotas.append(quota)
    return quotas


@pytest.mark.parametrize(("make", "expected"), [(ATA, bound_of_ata), (ATAEmpirical, bound_of_ata_empirical)])
@settings(deadline=None)
@given(
    samples=st.lists(st.lists(st.floats(0.1, 10.0), max_size=30), min_size=1, max_size=5),
    width=st.sampled_from([0.001, 0.01, 0.1, 1.0]),
    rounds=st.integers(1, 20),
)
def test_the_bounds_are_those_of_the_paper(
    make: Make,
    expected: Callable[[float, int, list[float]], float],
    samples: Samples,
    width: float,
    rounds: int,
) -> None:
    allocator = after_rounds(make, len(samples), width, rounds)
    for worker, seconds in enumerate(samples):
        allocator.observe(worker, seconds)
    wanted = [expected(width, rounds, seconds) for seconds in samples]
    assert allocator.bounds() == pytest.approx(wanted, rel=1e-12, abs=1e-13)


def test_the_bounds_of_a_hundred_tasks_are_what_a_pocket_calculator_says() -> None:
    # Round 1: ln(2) / 100 = 0.00693147, its root 0.0832555, so the width is 0.180374.
    ata, empirical = after_rounds(ATA, 1, 2.0, 1), after_rounds(ATAEmpirical, 1, 2.0, 1)
    for allocator in (ata, empirical):
        allocator.observe(0, [2.0, 4.0] * 50)
    assert ata.bounds() == pytest.approx([3.0 - 2.0 * 0.180374], abs=3e-6)
    assert empirical.bounds() == pytest.approx([3.0 * (1 - 2.0 * 0.180374)], abs=9e-6)


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
    allocator = make(2, 4, 0.1, 0)
    assert allocator.state()["k"] == 0
    for k in (1, 2, 3):
        allocator.allocate(everyone(allocator))
        for worker in (0, 1):
            allocator.observe(worker, [3.0] * 4)  # two observations per round, one more round
        assert allocator.state()["k"] == k
    before = allocator.bounds()
    allocator.allocate(everyone(allocator))
    assert (allocator.bounds() < before).all()


@both
def test_a_stopped_task_adds_its_time_but_no_task(make: Make) -> None:
    allocator = after_rounds(make, 2, 1e-9, 1)
    allocator.observe(1, [2.0, 4.0], stopped=[1.5])
    allocator.observe(1, [], stopped=[0.5])
    state = allocator.state()
    assert state["K"].tolist() == [0, 2]
    assert state["T"].tolist() == [0.0, 8.0]
    assert allocator.bounds()[1] == pytest.approx(4.0, rel=1e-6)


@both
def test_the_seed_decides_who_is_tried_first(make: Make) -> None:
    def exploration(seed: int) -> list[list[int]]:
        return play(make(30, 5, 0.5, seed), DrawnTimes(Exponential(30)), range(1, 5))

    assert exploration(1) == exploration(1)
    assert exploration(1) != exploration(2)


@both
def test_untried_workers_are_drawn_in_each_round(make: Make) -> None:
    allocator = make(30, 5, 0.5, 0)
    assert len({tuple(allocator.allocate(everyone(allocator)).tolist()) for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("make", "width"), [(ATA, 0.02), (ATA, 0.2), (ATAEmpirical, 0.01), (ATAEmpirical, 0.05)]
)
def test_with_constant_times_the_quotas_become_those_of_the_oracle(make: Make, width: float) -> None:
    means = [2.3, 1.0, 50.0, 7.7, 3.1]
    quotas = play(make(5, 10, width, 0), DrawnTimes(LAWS["constant"](5, means)), range(1, 601))
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
def test_overhead_counts_only_where_the_allocator_wants_it(counted: bool, seconds: float) -> None:
    allocator = ATAEmpirical(2, 3, overhead=counted)
    allocator.observe(1, [1.0, 2.0], [0.5], 0.75)
    assert (allocator.K.tolist(), allocator.T.tolist()) == ([0, 2], [0.0, seconds])
