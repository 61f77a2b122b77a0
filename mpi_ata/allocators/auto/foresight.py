"""Predicts how long a round with given quotas takes, by a normal approximation of each worker's time."""

from typing import NamedTuple

import numpy as np

from mpi_ata.allocators.auto.normal import tail_and_loss
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.arrays import Array, IntArray


def between(lowest: float, highest: float, count: int) -> Array:
    """Return numbers from the lowest to the highest with equal ratios, much faster than np.geomspace."""
    return np.asarray(lowest * (highest / lowest) ** (np.arange(count) / (count - 1.0)))


class Plan(NamedTuple):
    """Quotas of some workers, and what a round with them is expected to be."""

    quota: IntArray
    length: float  # of the round
    worker_time: float
    limit: float  # the time L that the quotas were chosen for
    threshold: float  # the cost of the last task that was chosen
    price: float  # of a second of worker time in those costs


class Tasks(NamedTuple):
    """Tasks that might be ordered, flat: the first, second, ... of each worker, worker by worker."""

    worker: IntArray
    first: IntArray  # where each worker's tasks begin
    mu: Array  # mean time of the task itself
    m: Array  # when it is done, on average
    s: Array  # standard deviation of that

    def since_previous(self, values: Array) -> Array:
        """Return by how much each task raises a value, along the last axis; it is 0 without tasks."""
        raised = values.copy()
        raised[..., 1:] -= values[..., :-1]
        raised[..., self.first] = values[..., self.first]
        return raised

    def per_worker(self, chosen: IntArray) -> IntArray:
        """Return how many of the chosen tasks are each worker's."""
        return np.bincount(self.worker[chosen], minlength=len(self.first)).astype(np.int64)

    def late(self, limits: Array) -> tuple[Array, Array]:
        """Return for each limit the chance that each task is done later, and the expected lateness."""
        late, loss = tail_and_loss((limits[:, None] - self.m) / self.s)
        loss *= self.s
        return late, loss


def lay_out(speeds: Speeds, budget: int, longest: float) -> Tasks:
    """Return the tasks of each worker that could be done before `longest`, and one more."""
    mu, sd, un = speeds
    counts = np.minimum(longest / mu + 1.0, budget).astype(np.int64)
    worker, q = np.repeat(np.arange(len(mu)), counts), task_numbers(counts)
    mean = mu[worker]
    s = np.sqrt(q * (sd * sd)[worker] + (q * un[worker]) ** 2)
    return Tasks(worker, np.cumsum(counts) - counts, mean, q * mean, s)


def task_numbers(counts: IntArray) -> Array:
    """Return 1, 2, ... up to each count, one after another."""
    ends = np.cumsum(counts)
    return np.arange(1.0, ends[-1] + 1.0) - np.repeat(ends - counts, counts)


def expected_length(speeds: Speeds, quota: IntArray) -> float:
    """Return the expected time of a round with these quotas, or a little more: min over L of L + lateness."""
    busy = np.flatnonzero(quota)
    mu, sd, un = speeds.of(busy)
    q = quota[busy]
    m, s = q * mu, np.sqrt(q * sd * sd + (q * un) ** 2)
    limits = m.max() + s.max() * np.linspace(-1.0, 3.0, 33)
    _, loss = tail_and_loss((limits[:, None] - m) / s)
    return float(np.min(limits + (loss * s).sum(axis=1)))
