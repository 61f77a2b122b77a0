"""Softmax regression on the handwritten digits that come with scikit-learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import UsageError, require
from mpi_ata.limits import check_memory
from mpi_ata.problems.interface import Task, shard

CLASSES = 10
TEST_EVERY = 5  # every fifth image is in the test set


class Logistic:
    """The mean cross entropy of a softmax, plus regularisation / 2 times the squared norm of the weights.

    A task is the gradient over `batch_size` images, drawn from the whole training set or, if it is
    `sharded`, from the worker's own part of it: sorted by digit, so that each worker sees only one or a few.
    """

    def __init__(
        self,
        batch_size: int = 1,
        regularisation: float = 1e-3,
        sharded: bool = False,
        dtype: str = "float64",
    ) -> None:
        require(batch_size >= 1, f"{batch_size=} must be at least 1")
        require(regularisation >= 0, f"{regularisation=} must be at least 0")
        require(dtype in ("float32", "float64"), f"{dtype=} must be 'float32' or 'float64'")
        images, digits = load_digits(dtype)
        check_memory(f"batch_size={batch_size}", batch_size * images[0].nbytes)
        testing = np.arange(len(digits)) % TEST_EVERY == 0
        order = np.argsort(digits[~testing], kind="stable")
        self._images, self._digits = images[~testing][order], digits[~testing][order]
        self._test = images[testing], digits[testing]
        self._batch_size, self._regularisation, self._sharded = batch_size, regularisation, sharded
        self._n = 0
        self._shape = images.shape[1], CLASSES  # of the weights; the last input is always 1
        self.x0: Array = np.zeros(self._shape[0] * CLASSES, dtype)

    def setup(self, worker: int | None, n: int) -> None:
        """Set the number of workers that share the data."""
        self._n = n
        self._draws_from(worker or 0)

    def _draws_from(self, worker: int) -> tuple[int, int]:
        """Return the first image a worker may draw, and the one after the last."""
        size = len(self._digits)
        return shard(size, worker, self._n) if self._sharded else (0, size)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient over one batch."""
        return self.gradients(x, [task])

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of the gradients over several batches."""
        drawn = [task.rng.integers(*self._draws_from(task.worker), self._batch_size) for task in tasks]
        index = np.concatenate(drawn)
        images, digits = self._images[index], self._digits[index]
        error = _softmax(images @ x.reshape(self._shape))
        error[np.arange(len(digits)), digits] -= 1
        g: Array = images.T @ error
        g /= self._batch_size
        g[:-1] += len(tasks) * self._regularisation * x.reshape(self._shape)[:-1]
        return g.reshape(-1)

    def loss(self, x: Array) -> float:
        """Return the objective over the training set."""
        W = x.reshape(self._shape)[:-1]
        penalty = self._regularisation / 2 * float((W * W).sum())
        return self._cross_entropy(x, self._images, self._digits) + penalty

    def evaluate(self, x: Array) -> dict[str, float]:
        """Return cross entropy and accuracy on the test set."""
        images, digits = self._test
        right = (images @ x.reshape(self._shape)).argmax(axis=1) == digits
        return {"test_loss": self._cross_entropy(x, images, digits), "accuracy": float(right.mean())}

    def _cross_entropy(self, x: Array, images: Array, digits: IntArray) -> float:
        scores = images @ x.reshape(self._shape)
        largest = scores.max(axis=1)
        total = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        return float((total - scores[np.arange(len(digits)), digits]).mean())


def _softmax(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def load_digits(dtype: str) -> tuple[Array, IntArray]:
    """Return images of 8 x 8 pixels from 0 to 1, each with a 1 appended, and the digits they show."""
    try:
        from sklearn import datasets
    except ImportError:
        raise UsageError("scikit-learn is missing; install it with pip install 'mpi-ata[sklearn]'") from None
    pixels, digits = datasets.load_digits(return_X_y=True)
    images = np.ones((len(pixels), pixels.shape[1] + 1), dtype)
    images[:, :-1] = pixels / 16
    return images, digits.astype(np.int64)
