"""Recorded rounds, replayed: the same decisions take as long as they took."""

import numpy as np
import pytest

from mpi_ata.arrays import State
from mpi_ata.driver.recorder import RoundSample
from mpi_ata.times import Constant
from mpi_ata.times.replayed import RecordedRounds, ReplayedTimes, recorded_rounds


def columns() -> State:
    """Three rounds of three workers, of which the last one never did anything."""
    sample = RoundSample()
    sample.add(1, 5.0, [(0, [1.0, 2.0], 0.5), (1, [4.0], 0.75)])
    sample.add(2, 3.0, [(1, [1.5], 0.25), (1, [0.5], 0.25)])
    sample.add(3, 9.0, [(0, [8.0], 0.5)])
    return sample.state()


@pytest.fixture
def recorded() -> RecordedRounds:
    return recorded_rounds(columns(), 3)


def test_a_worker_takes_what_it_took_in_that_round_and_then_in_the_next_ones(
    recorded: RecordedRounds,
) -> None:
    times = ReplayedTimes(Constant(3, scale=7.0), 0, recorded)
    of_worker = [[times(k, number)[worker] for number in range(4)] for worker, k in ((0, 1), (0, 2), (1, 2))]
    assert of_worker == [[1.0, 2.0, 8.0, 1.0], [8.0, 1.0, 2.0, 8.0], [1.5, 0.5, 4.0, 1.5]]
    assert times(99, 0).tolist() == times(3, 0).tolist() == [8.0, 4.0, 7.0], "the law is for the third worker"


def test_overhead_is_that_of_the_order_and_the_rest_of_a_round_is_the_managers(
    recorded: RecordedRounds,
) -> None:
    nothing = np.zeros(3)
    assert [recorded.overhead.at(recorded.row(k), otherwise=nothing).tolist() for k in (1, 2, 3)] == [
        [0.5, 0.75, 0.0],
        [0.5, 0.5, 0.0],
        [0.5, 0.75, 0.0],
    ]
    assert [recorded.gap(k) for k in (1, 2, 3)] == [5.0 - 4.75, 3.0 - 2.5, 9.0 - 8.5]


def test_some_of_the_workers_can_be_chosen(recorded: RecordedRounds) -> None:
    only = recorded.only(np.array([1, 2]))
    assert only.seconds.counts.tolist() == [3, 0]
    assert only.seconds.at(1).tolist()[0] == 1.5
    assert only.overhead.at(0).tolist()[0] == 0.75


def test_rounds_are_resampled_in_blocks() -> None:
    sample = RoundSample()
    for k in range(1, 101):
        sample.add(k, float(k), [(0, [float(k)], 0.0)])
    recorded = recorded_rounds(sample.state(), 1)
    order = recorded.resampled(np.random.default_rng(1)).order
    assert len(order) == 100
    assert set(order) < set(range(100)), "some are left out"
    assert all(set(np.diff(block) % 100) == {1} for block in order.reshape(10, 10))
