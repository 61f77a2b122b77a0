"""Data that each worker owns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_ata.errors import RunError
from mpi_ata.problems.interface import shard


@given(st.integers(1, 60), st.integers(1, 60))
def test_every_sample_belongs_to_one_worker_and_the_parts_differ_by_at_most_one(n: int, more: int) -> None:
    size = n + more
    parts = [shard(size, worker, n) for worker in range(n)]
    assert [number for part in parts for number in range(*part)] == list(range(size))
    lengths = {end - begin for begin, end in parts}
    assert max(lengths) - min(lengths) <= 1


def test_more_workers_than_samples_are_rejected() -> None:
    with pytest.raises(RunError, match="3 samples cannot be divided among 4 workers"):
        shard(3, 0, 4)


def test_nobody_owns_samples_before_the_number_of_workers_is_known() -> None:
    with pytest.raises(RunError, match="call setup"):
        shard(3, 0, 0)
