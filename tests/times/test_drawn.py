"""Times that change in mid-run: by the factor, from the round on, for these workers and nobody else."""

import re
from typing import Any

import numpy as np
import pytest

from mpi_ata.times import Constant, DrawnTimes, Sqrt
from mpi_ata.times.drawn import Change


def ratios(round: int, *changes: Change, n: int = 8, seed: int = 3) -> list[float]:
    """Return by how much each worker's time in a round differs from that without changes."""
    changed, plain = DrawnTimes(Constant(n), seed, changes=changes), DrawnTimes(Constant(n), seed)
    return list(changed(round, 2) / plain(round, 2))


def test_times_are_multiplied_from_the_round_on_and_for_these_workers_only() -> None:
    change = Change(10, [0, 3], 5.0)
    assert ratios(9, change) == [1.0] * 8
    assert ratios(10, change) == ratios(11, change) == [5.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0]


def test_several_changes_multiply_in_whatever_order_they_are_given() -> None:
    changes = Change(20, [1, 2], 0.5), Change(10, [0, 1], 4.0), Change(20, [2], 0.25)
    assert ratios(10, *changes, n=3) == [4.0, 4.0, 1.0]
    assert ratios(20, *changes, n=3) == [4.0, 2.0, 0.125]


@pytest.mark.parametrize(("fraction", "count"), [(0.25, 2), (0.01, 1), (0.5, 4), (1.0, 8)])
def test_a_fraction_changes_that_many_workers_and_at_least_one(fraction: float, count: int) -> None:
    assert sorted(ratios(1, Change(1, fraction, 3.0))) == [1.0] * (8 - count) + [3.0] * count


def test_the_seed_draws_who_is_in_a_fraction_and_each_fraction_is_drawn_apart() -> None:
    change = Change(1, 0.5, 3.0)
    drawn = [ratios(1, change, seed=seed) for seed in range(20)]
    assert drawn == [ratios(1, change, seed=seed) for seed in range(20)]
    assert len(set(map(tuple, drawn))) > 5
    both = [factor for seed in range(5) for factor in ratios(1, change, change, seed=seed)]
    assert set(both) == {1.0, 3.0, 9.0}


def test_what_is_drawn_is_the_same_as_without_changes_bit_for_bit() -> None:
    plain, changed = (DrawnTimes(Sqrt(5), 7, 1e-3, changes=c) for c in ((), (Change(4, [1], 2.0),)))
    for round in (1, 3, 9, 4, 2):  # in any order: any process can compute any of them
        factors = np.array([1.0, 2.0 if round >= 4 else 1.0, 1.0, 1.0, 1.0])
        assert (changed(round, 0) == plain(round, 0) * factors).all()
    assert (changed.means == plain.means).all(), "means stay those of the law"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((0, [1], 2.0), "round=0 must be at least 1"),
        ((1, [1], 0.0), "factor=0.0 must be above 0"),
        ((1, [1], float("inf")), "factor=inf must be above 0 and finite"),
        ((1, [], 2.0), "workers=[] must be a list of one or more different indices"),
        ((1, [1, 1], 2.0), "workers=[1, 1] must be a list"),
        ((1, [-1], 2.0), "workers=[-1] must be a list"),
        ((1, [True], 2.0), "workers=[True] must be a list"),
        ((1, [[1]], 2.0), "workers=[[1]] must be a list"),
        ((1, 1, 2.0), "workers=1 must be a list of indices, such as [0, 3], or a fraction"),
        ((1, 1.5, 2.0), "workers=1.5 must be a list of indices"),
        ((1, 0.0, 2.0), "workers=0.0 must be a list of indices"),
    ],
)
def test_a_change_that_means_nothing_is_rejected(keys: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Change(*keys)


def test_an_index_beyond_the_workers_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"workers=\[1, 4\] must be indices from 0 to 3, since there are 4"):
        DrawnTimes(Sqrt(4), changes=[Change(1, [1, 4], 2.0)])


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_changes_that_leave_the_range_of_numbers_are_noticed(factor: float) -> None:
    change = Change(5, [0], factor)
    assert DrawnTimes(Sqrt(4), changes=[Change(5, [0], 2.0)]).representable()
    assert not DrawnTimes(Sqrt(4), changes=[change, change]).representable()
