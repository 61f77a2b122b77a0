"""Softmax regression on the digits, against formulas written out one image at a time."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata import Task
from mpi_ata.arrays import Array
from mpi_ata.problems import Logistic, task_streams
from tests.driver.driven import driven
from tests.pages import DOCS, agrees, run_here, walk

datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed: `make torch`")

ROOT = Path(__file__).parent.parent.parent
SIZE = 65 * 10  # weights: 64 pixels and a constant, 10 digits


def task(number: int = 0, round: int = 1, worker: int = 0, seed: int = 0) -> Task:
    return Task(task_streams(seed), round, worker, number)


def point(seed: int = 1, dtype: str = "float64") -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.3, SIZE).astype(dtype)


def data() -> tuple[Array, Any, Array, Any]:
    """Return training images and digits, sorted by digit, and the test set: every fifth."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images = np.hstack([pixels / 16, np.ones((len(pixels), 1))])
    testing = np.arange(len(digits)) % 5 == 0
    order = np.argsort(digits[~testing], kind="stable")
    return images[~testing][order], digits[~testing][order], images[testing], digits[testing]


def cross_entropy(x: Array, image: Array, digit: int) -> float:
    scores = image @ x.reshape(65, 10)
    return float(math.log(math.fsum(math.exp(score) for score in scores)) - scores[digit])


def penalty(x: Array, regularisation: float) -> float:
    return regularisation / 2 * math.fsum(weight**2 for weight in x.reshape(65, 10)[:64].flat)


def test_loss_and_evaluation_are_the_means_over_the_images() -> None:
    images, digits, test_images, test_digits = data()
    x = point()
    problem = Logistic(regularisation=0.02)
    mean = np.mean([cross_entropy(x, image, digit) for image, digit in zip(images, digits, strict=True)])
    assert problem.loss(x) == pytest.approx(mean + penalty(x, 0.02), rel=1e-10)
    tested = list(zip(test_images, test_digits, strict=True))
    right = [int(np.argmax(image @ x.reshape(65, 10))) == digit for image, digit in tested]
    assert problem.evaluate(x) == {
        "test_loss": pytest.approx(np.mean([cross_entropy(x, *pair) for pair in tested]), rel=1e-10),
        "accuracy": pytest.approx(np.mean(right)),
    }
    assert (len(digits), len(test_digits)) == (1437, 360)


def test_a_gradient_is_the_slope_of_the_loss_over_its_batch() -> None:
    images, digits, _, _ = data()
    x, direction, h = point(), point(2), 1e-5
    drawn = task(3).rng.integers(0, len(digits), 6)

    def loss(x: Array) -> float:
        return float(np.mean([cross_entropy(x, images[i], digits[i]) for i in drawn])) + penalty(x, 0.1)

    slope = (loss(x + h * direction) - loss(x - h * direction)) / (2 * h)
    g = Logistic(batch_size=6, regularisation=0.1).gradient(x, task(3))
    assert g @ direction == pytest.approx(slope, rel=1e-6)


def test_gradients_are_unbiased() -> None:
    problem, x, draws = Logistic(batch_size=50, regularisation=0.01), point(), 400
    sample = np.array([problem.gradient(x, task(number)) for number in range(draws)])
    h, direction = 1e-5, point(2) / np.linalg.norm(point(2))
    slope = (problem.loss(x + h * direction) - problem.loss(x - h * direction)) / (2 * h)
    along = sample @ direction
    assert along.mean() == pytest.approx(slope, abs=5 * along.std() / math.sqrt(draws))  # 5 standard errors


def test_gradients_is_the_sum_of_single_gradients() -> None:
    problem, x = Logistic(batch_size=3, regularisation=0.5), 1e4 * point()  # scores that must not overflow
    wanted = sum(problem.gradient(x, task(number)) for number in range(5))
    assert math.isfinite(problem.loss(x))
    found = problem.gradients(x, [task(number) for number in range(5)])
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_the_type_of_the_job_file(dtype: str) -> None:
    problem = Logistic(dtype=dtype)
    x = point(dtype=dtype)
    x.flags.writeable = False
    assert problem.x0.dtype == problem.gradient(x, task()).dtype == dtype
    assert problem.loss(x) == pytest.approx(Logistic().loss(x.astype(np.float64)), rel=1e-5)


def test_with_shards_a_worker_draws_only_its_own_digits() -> None:
    problem = Logistic(batch_size=200, sharded=True, regularisation=0.0)
    problem.setup(None, 10)
    _, digits, _, _ = data()
    for worker in range(10):
        # At x = 0 the constant's row of the gradient is 1/10 minus the share of each digit in the batch.
        shares = 0.1 - problem.gradient(problem.x0, task(worker=worker)).reshape(65, 10)[64]
        own = set(digits[1437 * worker // 10 : 1437 * (worker + 1) // 10])
        assert set(np.flatnonzero(shares > 1e-9)) == own
        assert len(own) <= 3


@pytest.mark.parametrize(
    ("key", "value"), [("batch_size", 0), ("regularisation", -1.0), ("dtype", "float16")]
)
def test_a_wrong_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{key}={value!r} must be"):
        Logistic(**{key: value})


def test_the_job_learns_the_digits() -> None:
    outcome = driven(ROOT / "jobs" / "digits.toml")
    assert (outcome.reason or "").startswith("loss 0.2")
    assert outcome.trace.evaluation["accuracy"] > 0.9


def test_the_sweep_on_the_page_about_sharing_works_as_printed(tmp_path: Path) -> None:
    for block, printed in walk(DOCS / "sharing.md", tmp_path, run_here):
        assert agrees(block, printed), f"{block.commands}: {printed}"
