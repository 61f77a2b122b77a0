"""The sequence that the tasks of all workers share."""

import pytest

from mpi_ata.clusters.sample_indices import SampleIndices
from mpi_ata.errors import UsageError


def test_numbers_are_given_out_in_order_and_each_once() -> None:
    draws = SampleIndices()
    draws.take([0, 1], [3, 2])
    assert (draws.of(0), draws.of(1)) == ([0, 1, 2], [3, 4])
    draws.deliver(0, 3)
    draws.take([0], [2])
    assert draws.of(0) == [5, 6]


def test_what_is_not_delivered_goes_first_to_those_who_deliver() -> None:
    draws = SampleIndices()
    draws.take([0, 1, 2], [3, 3, 3])
    draws.deliver(2, 3)
    draws.deliver(1, 1)
    draws.give_back(0)
    draws.give_back(1)
    draws.take([0, 1, 2], [2, 2, 2])
    assert [draws.of(worker) for worker in range(3)] == [[5, 9], [2, 4], [0, 1]]


@pytest.mark.parametrize("idle", [True, False])
def test_a_restored_sequence_goes_on_where_it_was(idle: bool) -> None:
    first, second = SampleIndices(), SampleIndices()
    first.take([0, 1], [3, 2])
    first.give_back(1)
    second.restore(first.state(), idle)
    assert second.of(0) == ([] if idle else [0, 1, 2])
    second.take([1], [3])
    assert second.of(1) == ([0, 1, 2] if idle else [3, 4, 5])


def test_orders_without_end_are_refused() -> None:
    with pytest.raises(UsageError, match="needs orders of a known number of tasks"):
        SampleIndices().take([0], [10**9])
