"""The quadratic of the paper, against dense matrices."""

import math
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.problems import Quadratic, Task, task_streams

sizes = pytest.mark.parametrize("d", [1, 2, 5, 100])


def dense(d: int) -> tuple[Array, Array]:
    """A = tridiag(-1, 2, -1) / 4 and b = -e_1 / 4."""
    A = (2.0 * np.eye(d) - np.eye(d, k=1) - np.eye(d, k=-1)) / 4.0
    b = np.zeros(d)
    b[0] = -0.25
    return A, b


def points(d: int) -> Array:
    return np.random.default_rng(d).normal(0.0, 3.0, (10, d))


def task(number: int, round: int = 1, worker: int = 0, seed: int = 0) -> Task:
    return Task(task_streams(seed), round, worker, number)


@sizes
def test_loss_and_full_gradient_are_those_of_the_dense_matrix(d: int) -> None:
    A, b = dense(d)
    for x in points(d):
        assert Quadratic(d).full_gradient(x) == pytest.approx(A @ x - b, rel=1e-12, abs=1e-13)
        assert Quadratic(d).loss(x) == pytest.approx(0.5 * x @ A @ x - b @ x, rel=1e-12)


@sizes
def test_the_minimum_is_the_loss_where_the_gradient_vanishes(d: int) -> None:
    A, b = dense(d)
    solution, problem = np.linalg.solve(A, b), Quadratic(d)
    assert problem.minimum == pytest.approx(0.5 * solution @ A @ solution - b @ solution, rel=1e-12)
    assert problem.loss(solution) == pytest.approx(problem.minimum, rel=1e-12)
    assert problem.full_gradient(solution) == pytest.approx(np.zeros(d), abs=1e-13)


@sizes
@pytest.mark.parametrize("noise", [0.01, 2.0])
def test_the_squared_error_of_a_gradient_is_noise_squared_on_average(d: int, noise: float) -> None:
    problem, x, draws = Quadratic(d, noise), points(d)[0], 4000
    errors = np.array([problem.gradient(x, task(u)) for u in range(draws)]) - problem.full_gradient(x)
    # Five standard errors: |error|^2 / noise^2 is a chi-square of d degrees over d, of variance 2 / d.
    tolerance = 5 * math.sqrt(2 / d / draws)
    assert (errors**2).sum(axis=1).mean() / noise**2 == pytest.approx(1.0, abs=tolerance)
    # Six standard errors for the means, since there are a hundred coordinates.
    assert errors.mean(axis=0) == pytest.approx(np.zeros(d), abs=6 * noise / math.sqrt(d * draws))


@sizes
@pytest.mark.parametrize("count", [1, 2, 9])
def test_gradients_is_the_sum_of_single_gradients(d: int, count: int) -> None:
    problem, x = Quadratic(d, noise=1.0), points(d)[0]
    x.flags.writeable = False
    wanted = sum(problem.gradient(x, task(u)) for u in range(count))
    found = problem.gradients(x, [task(u) for u in range(count)])
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-13)


def test_the_same_task_gives_the_same_gradient_and_any_other_another() -> None:
    problem, x = Quadratic(5), points(5)[0]
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    gradients = [problem.gradient(x, task(*key)).tolist() for key in keys]
    assert [problem.gradient(x, task(*key)).tolist() for key in keys] == gradients
    assert len({tuple(gradient) for gradient in gradients}) == len(keys)


@pytest.mark.parametrize(
    ("keys", "value"),
    [({"dimension": 0}, "dimension=0"), ({"noise": -0.5}, "noise=-0.5"), ({"noise": math.nan}, "nan")],
)
def test_wrong_values_are_named(keys: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError, match=value):
        Quadratic(**keys)
