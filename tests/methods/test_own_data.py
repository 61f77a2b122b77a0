"""Each worker owns its data: minibatch and asynchronous methods on the virtual cluster."""

import numpy as np
import pytest

from mpi_ata import methods
from mpi_ata.arrays import Array
from mpi_ata.clusters import Task, VirtualCluster
from mpi_ata.methods import HeterogeneousDataSGD, Malenia, RescaledASGD, Ringleader
from mpi_ata.methods.own_data import harmonic_mean
from mpi_ata.times import DrawnTimes, Linear
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, cluster_of, counts
from tests.methods.test_losses import METHODS, OWNERS, N


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


def test_two_rounds_of_ringleader_by_hand() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 4.6, 4.25])
    method = Ringleader(problem.x0, 3, Plain(0.5))
    first = method.step(cluster)
    # Phase 1 ends at 4.6 with worker 1: b = (4, 1, 1), and the means are (8, 1 + i): x = (4, -1), from where
    # worker 1 continues.  At 5 worker 0 gives its fifth, still (8, 1): x = (0, -2).  What it gives there at
    # 6, 7 and 8, (0, 1), is for the next round.  At 8.5 worker 2 gives (8, 3) once more: x = (-4, -3).
    assert method.x.tolist() == pytest.approx([-4.0, -3.0])
    assert (method.b.tolist(), method.G.tolist()) == ([3, 0, 0], [[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
    assert counts(first) == ([8, 1, 2], [8, 1, 2], [0, 0, 0], [0, 0, 0])
    assert (first.duration, first.waste, first.delays.tolist()) == (8.5, 0.0, [0, 1, 2])
    second = method.step(cluster)
    # Worker 0 gives (0, 1) at 9, 10, 11 and 12, and worker 1 gives (4, 2) at 9.2.  Worker 2 gives (-4, 3) at
    # 12.75, which ends phase 1: the mean of the means is (0, 2).  It stays so when worker 0 gives (0, 1) at
    # 13, and worker 1 (4, 2) at 13.8, at the point that it got 2n - 2 = 4 updates ago.
    assert method.x.tolist() == pytest.approx([-4.0, -6.0])
    assert counts(second) == ([5, 2, 1], [5, 2, 1], [0, 0, 0], [0, 0, 0])
    assert second.delays.tolist() == [2, 3, 4]
    assert second.duration == pytest.approx(13.8 - 8.5)
    assert (method.k, method.s) == (2, 6)


def test_no_gradient_of_ringleader_is_older_than_2n_minus_2_updates_or_wasted() -> None:
    problem, cluster = Ramp(), VirtualCluster(Ramp(), DrawnTimes(Linear(9, 1.0), seed=4))
    method = Ringleader(problem.x0, 9, Plain(0.001))
    rounds = [method.step(cluster) for _ in range(60)]
    assert 9 < max(round.delays.max() for round in rounds) <= 2 * 9 - 2
    assert not any(round.wasted.any() for round in rounds)


def test_a_round_of_rescaled_asgd_by_hand() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 3.0])
    method = RescaledASGD(problem.x0, 2, Plain(0.5), budget=4)
    first = method.step(cluster)
    # Worker 0 gives (8, 1), (4, 1) and (2, 1) at 1, 2 and 3, with the factor 1, since no other time is known:
    # x = (1, -1.5).  Worker 1 gives (8, 2) at 3, with the factor 3 * (1 / 1 + 1 / 3) / 2 = 2: x = (-7, -3.5).
    assert method.x.tolist() == pytest.approx([-7.0, -3.5])
    assert first.delays.tolist() == [0, 0, 0, 3]
    assert counts(first) == ([3, 1], [3, 1], [0, 0], [0, 0])
    method.B = 1
    method.step(cluster)
    # Worker 0 has begun at (1, -1.5) and gives (1, 1); its factor is 1 * (1 / 1 + 1 / 3) / 2 = 2 / 3.
    assert method.x.tolist() == pytest.approx([-7.0 - 1 / 3, -3.5 - 1 / 3])


def test_a_round_of_heterogeneous_data_asgd_by_hand() -> None:
    problem, allocator = Ramp(), Fixed([2, 0])
    cluster = cluster_of(problem, [1.0, 2.5])
    method = methods.HeterogeneousDataASGD(problem.x0, allocator, Plain(0.5))
    round = method.step(cluster)
    # Three and one gradients, so the factors are 2/3 and 2.  At 1 worker 0 gives (8, 1): x = (16/3, -1/3).
    # At 2 it gives (16/3, 1): x = (32/9, -2/3).  At 2.5 worker 1 gives (8, 2): x = (-40/9, -8/3).  At 3
    # worker 0 gives (32/9, 1): x = (-152/27, -3).
    assert method.x.tolist() == pytest.approx([-152 / 27, -3.0])
    assert round.delays.tolist() == [0, 0, 2, 1]
    assert (counts(round), round.quota.tolist()) == (([3, 1], [3, 1], [0, 0], [0, 0]), [3, 1])
    assert allocator.diary == [(0, [1.0], []), (0, [1.0], []), (1, [2.5], []), (0, [1.0], [])]


class Owned:
    """f_i(x) = (x - i)^2 / 2: the minimum of the mean is the mean of the workers' indices."""

    def __init__(self) -> None:
        self.x0: Array = np.zeros(1)

    def gradient(self, x: Array, task: Task) -> Array:
        return x - task.worker


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWNERS, "ringmaster"])
def test_all_data_count_equally_however_fast_their_owners_are(name: str) -> None:
    problem, fast_first = Owned(), DrawnTimes(Linear(N, 1.0), seed=2)
    method = {**OWNERS, **METHODS}[name](problem.x0)
    cluster = VirtualCluster(problem, fast_first)
    path = [method.step(cluster) and method.x.item() for _ in range(1000)]
    # Weighted by their speeds, 1, 1/2, ..., 1/5, the mean index is 1.19; delays above 6 lower it further.
    assert (
        np.mean(path[400:]) < 1.3
        if name == "ringmaster"
        else np.mean(path[400:]) == pytest.approx(2, abs=0.08)
    )
