"""Quotas beyond the budget: the round ends with the B-th result, and what is still running is stopped."""

from typing import NamedTuple

import numpy as np

from mpi_ata.allocators.auto.foresight import Plan, Tasks, lay_out
from mpi_ata.allocators.auto.normal import tail_and_loss
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.arrays import Array, BoolArray

LENGTHS, STAGES = 16, 2  # the best of 16 rounds, and of 16 around it: those next to it are 1 to 2 % apart
EXTRA = (0, 1, 2, 3, 5, 8)  # tasks beyond those with which a round ends in time with even odds
FARTHEST = 2.0  # times the length without spares: rounds hardly ever last longer
# Per cent of clock that a per cent of worker time must save even where less than W0 is spent.  Chosen by
# simulation: with 0.2 the mix takes up workers that hardly help, with 0.35 linear gives up clock.
THRIFT = 0.28
LEAST_VARIANCE = 1e-12  # of a number of results, so that there is a deviation to divide by
LEAST_SECONDS = 1e-12  # of a task's mean: what it costs at least, so that a ratio can be formed


def plan_spares(speeds: Speeds, delays: Array, budget: int, price: float, whole: Plan, W0: float) -> Plan:
    """Return the quotas of the best round in which tasks may be stopped, or those without spares.

    `delays` are how long each worker is still busy at the start, since a task could not be stopped at once.
    """
    tasks = _delayed(lay_out(speeds, budget, whole.length), delays)
    lowest = min(0.5 * budget / float((1.0 / speeds.mu).sum()), whole.length)  # half of divisible tasks
    highest = FARTHEST * whole.length
    best = whole
    for _ in range(STAGES):
        found = _best(tasks, budget, price, W0, _around(best.length, lowest, highest))
        best = min(best, found, key=lambda plan: float(_value(plan.length, plan.worker_time / W0, price)))
    return best


def _around(length: float, lowest: float, highest: float) -> Array:
    """Return lengths from the lowest to the highest, the denser the closer they are to one of them."""
    steps = np.linspace(-1.0, 1.0, LENGTHS)
    farthest = np.where(steps < 0.0, length / lowest, highest / length)
    return np.asarray(length * farthest ** (steps * np.abs(steps)))


def _best(tasks: Tasks, budget: int, price: float, W0: float, lengths: Array) -> Plan:
    """Return the best of the rounds that are planned for these lengths."""
    progress = _progress(tasks, lengths)
    chosen = _choices(progress, budget)
    length, cost = _expected(progress, chosen, budget)
    best = int(np.argmin(_value(length, cost / W0, price)))
    quota = tasks.per_worker(np.flatnonzero(chosen[best]))
    return Plan(quota, float(length[best]), float(cost[best]), float(length[best]), 0.0, 0.0)


def _value(length: Array | float, effort: Array | float, price: float) -> Array:
    """Return the length of a round, weighted by its worker time over W0.

    If all worker time up to W0 were free, plans would take up slow workers that save next to nothing
    whenever an error in a mean makes W0 too large.
    """
    return np.asarray(length * effort ** np.where(effort > 1.0, 1.0 / price, THRIFT / price))


class _Progress(NamedTuple):
    """What each task adds to a round that has lasted for some lengths; one row per length."""

    lengths: Array
    finished: Array  # to the expected number of results
    variance: Array  # to the variance of that number
    seconds: Array  # to the worker time


def _progress(tasks: Tasks, lengths: Array) -> _Progress:
    """Return what each task has added by each length."""
    late, loss = tasks.late(lengths)
    unused = lengths[:, None] - tasks.m + loss  # of each length, after the task is done
    seconds = -tasks.since_previous(unused)
    seconds[:, tasks.first] += lengths[:, None]
    done = 1.0 - late
    return _Progress(lengths, done, _variance(tasks, done), np.maximum(seconds, LEAST_SECONDS * tasks.mu))


def _variance(tasks: Tasks, done: Array) -> Array:
    """Return by how much each task raises the variance of the number of results of its worker.

    A worker's q-th result comes after all before it, so their number is a sum of nested events: the square
    of the number is the sum of 2 q - 1 over those that are done.
    """
    before = np.cumsum(done, axis=1)
    before -= done
    before -= before[:, tasks.first][:, tasks.worker]
    q = np.arange(len(tasks.worker)) - tasks.first[tasks.worker]
    return np.asarray(done * (2.0 * (q - before) + 1.0 - done))


def _choices(progress: _Progress, budget: int) -> BoolArray:
    """Return sets of tasks, a row each: for each length those with most results per second by then."""
    order = np.argsort(-progress.finished / progress.seconds, axis=1, kind="stable")
    results = np.cumsum(np.take_along_axis(progress.finished, order, axis=1), axis=1)
    # The B-th result is in by then with even odds if B - 1/2 are expected: the median of a count.
    counts = np.maximum((results < budget - 0.5).sum(axis=1) + 1, budget)
    rank = np.argsort(order, axis=1)
    return np.concatenate([rank < (counts + extra)[:, None] for extra in EXTRA])


def _expected(progress: _Progress, chosen: BoolArray, budget: int) -> tuple[Array, Array]:
    """Return how long a round with each set of tasks is expected to last, and its worker time.

    Both are integrals of the chance that the round still runs, since fewer than B results are in.
    """
    sets = chosen.astype(np.float64)
    results, variance = sets @ progress.finished.T, sets @ progress.variance.T
    running, _ = tail_and_loss((results - (budget - 0.5)) / np.sqrt(np.maximum(variance, LEAST_VARIANCE)))
    meanwhile = 0.5 * (running[:, 1:] + running[:, :-1])
    spent = sets @ progress.seconds.T
    length = progress.lengths[0] + meanwhile @ np.diff(progress.lengths)
    return length, spent[:, 0] + (meanwhile * np.diff(spent, axis=1)).sum(axis=1)


def _delayed(tasks: Tasks, delays: Array) -> Tasks:
    return tasks._replace(m=tasks.m + delays[tasks.worker]) if delays.any() else tasks
