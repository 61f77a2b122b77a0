"""Rennala MVR: two gradients per task, with the same sample."""

import numpy as np
import pytest

import mpi_ata
from mpi_ata.allocators import UTA
from mpi_ata.arrays import Array
from mpi_ata.clusters import Task
from mpi_ata.errors import UsageError
from mpi_ata.methods import RennalaMVR
from mpi_ata.problems import Quadratic, TwoPoints
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, cluster_of, counts


class Noisy:
    """f(x; xi) = x^2 / 2 + xi x, and a list of the points and noises of all gradients."""

    def __init__(self) -> None:
        self.x0: Array = np.array([8.0])
        self.seen: list[tuple[float, float]] = []
        self._g = np.zeros(1)

    def gradient(self, x: Array, task: Task) -> Array:
        noise = task.rng.standard_normal(1)
        self.seen.append((x.item(), noise.item()))
        np.add(x, noise, out=self._g)  # the same array for all tasks, as a problem may
        return self._g


def test_three_rounds_by_hand() -> None:
    problem, a, gamma = Noisy(), 0.25, 0.5
    cluster = cluster_of(TwoPoints(problem), [1.0, 1.5])
    method = RennalaMVR(problem.x0, Fixed([2, 1]), Plain(gamma), a)
    x, before, g = 8.0, 8.0, 0.0
    for k in (1, 2, 3):
        round = method.step(cluster)
        news, olds = problem.seen[::2], problem.seen[1::2]
        assert [point for point, _ in news] == pytest.approx([x] * 3)
        assert [point for point, _ in olds] == pytest.approx([before] * 3)
        assert [noise for _, noise in news] == [noise for _, noise in olds], "the same samples"
        xi = float(np.mean([noise for _, noise in news]))
        g = (x + xi) + (1 - a) * (g - (before + xi)) if k > 1 else x + xi
        before, x = x, x - gamma * g
        assert method.x.item() == pytest.approx(x)
        assert counts(round) == ([2, 1], [2, 1], [0, 0], [0, 0])
        problem.seen.clear()


def test_what_a_problem_computes_for_several_tasks_at_once_is_computed_so_at_both_points() -> None:
    x, found = np.random.default_rng(1).standard_normal((2, 5)), []
    for vectorised in (True, False):
        problem = Quadratic(5, noise=1.0)
        if not vectorised:
            problem.gradients = None  # type: ignore[method-assign, assignment]
        cluster = cluster_of(TwoPoints(problem), [1.0])
        cluster.start(np.array([0]), x.copy(), 1, 3, together=True)
        found.append(cluster.wait().result)  # type: ignore[union-attr]
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    noise = found[0] - 3 * np.stack([Quadratic(5).full_gradient(point) for point in x])
    assert noise[0] == pytest.approx(noise[1])


def test_a_cluster_without_two_points_is_rejected() -> None:
    problem = Quadratic(5)
    method = RennalaMVR(problem.x0, UTA(4, 8), Plain(0.1), a=0.2)
    with (
        mpi_ata.cluster(problem, times=mpi_ata.Sqrt(4)) as cluster,
        pytest.raises(UsageError, match=r"open the cluster with TwoPoints\(problem\)"),
    ):
        next(mpi_ata.run(method, cluster, stop=mpi_ata.Stop(rounds=1)))
