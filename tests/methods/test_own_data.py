"""Each worker owns its data: heterogeneous-data SGD and Malenia on the virtual cluster."""

import numpy as np
import pytest

from mpi_ata.methods import HeterogeneousDataSGD, Malenia
from mpi_ata.methods.own_data import harmonic_mean
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, cluster_of, counts


def test_everyone_computes_one_more_than_its_quota_and_the_mean_of_means_moves_x() -> None:
    problem, allocator = Ramp(), Fixed([3, 1, 0])
    cluster = cluster_of(problem, [1.0, 4.0, 9.0])
    method = HeterogeneousDataSGD(problem.x0, allocator, Plain(0.5))
    round = method.step(cluster)
    # The workers' means are (8, 1), (8, 2) and (8, 3), however many gradients each gave; theirs is (8, 2).
    assert method.x.tolist() == [4.0, -1.0]
    assert (method.k, round.number, round.quota.tolist()) == (1, 1, [4, 2, 1])
    assert counts(round) == ([4, 2, 1], [4, 2, 1], [0, 0, 0], [0, 0, 0])
    assert (round.duration, round.waste) == (9.0, 0.0)
    assert cluster.ledger.worker_time.tolist() == [4.0, 8.0, 9.0]
    assert allocator.diary == [(0, [1.0] * 4, []), (1, [4.0] * 2, []), (2, [9.0], [])]


def test_malenia_ends_when_the_harmonic_mean_of_the_counts_is_large_enough() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 1.75, 4.0])
    method = Malenia(problem.x0, Plain(0.5), S=5.5)
    for k, x in [(1, [4.0, -1.0]), (2, [2.0, -2.0])]:
        round = method.step(cluster)
        # Worker 2 delivers for the first time at 4; workers 0 and 1 have then delivered 4 and 2 gradients:
        # 3 / (1/4 + 1/2 + 1) = 1.714 < 5.5 / 3 = 1.833.  One more of worker 0 at 5 makes 1.765, and of
        # worker 1 at 5.25, its third, 1.957.
        assert method.x.tolist() == x
        assert round.used.tolist() == [5, 3, 1]
        assert counts(round) == ([6, 4, 2], [5, 3, 1], [1, 1, 1], [0, 0, 0])
        assert (round.duration, round.waste) == (5.25, 0.25 + 0.0 + 1.25)
        assert cluster.ledger.worker_time.tolist() == [5.25 * k] * 3
    assert (method.k, method.allocator) == (2, None)


@pytest.mark.parametrize(
    ("s", "mean"), [([0, 5], 0.0), ([3, 3, 3], 3.0), ([1, 2, 4], 3 / 1.75), ([7], 7.0), ([1, 1], 1.0)]
)
def test_the_harmonic_mean(s: list[int], mean: float) -> None:
    assert harmonic_mean(np.array(s)) == pytest.approx(mean)


@pytest.mark.parametrize("each", range(1, 60))
def test_rounding_costs_no_extra_task(each: int) -> None:
    # Equal workers give `each` gradients apiece at the same time, which is just enough for S = n * each.
    problem = Ramp()
    round = Malenia(problem.x0, Plain(0.5), S=7 * each).step(cluster_of(problem, [1.0] * 7))
    assert round.used.tolist() == [each] * 7
