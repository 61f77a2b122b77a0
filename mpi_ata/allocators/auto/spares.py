"""Quotas beyond the budget: the round ends with the B-th result, and what is still running is stopped."""

from typing import NamedTuple

import numpy as np

from mpi_ata.allocators.auto.foresight import Plan, Tasks, between, lay_out
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.allocators.auto.whole import value
from mpi_ata.arrays import Array

LENGTHS, STAGES = 10, 3  # the best of 10, of 10 around that, and of 10 around that: to below 1 %
LEAST_SECONDS = 1e-12  # of a task's mean: what it costs at least, so that a ratio can be formed


def plan_spares(speeds: Speeds, delays: Array, budget: int, price: float, whole: Plan, W0: float) -> Plan:
    """Return the quotas of the best round in which tasks may be stopped, or those without spares.

    `delays` are how long each worker is still busy at the start, since a task could not be stopped at once.
    """
    tasks = _delayed(lay_out(speeds, budget, whole.length), delays)
    lowest = min(0.5 * budget / float((1.0 / speeds.mu).sum()), whole.length)  # half of divisible tasks
    lengths = between(lowest, whole.length, LENGTHS)
    best = _best(tasks, budget, lengths, price, W0)
    for _ in range(STAGES - 1):
        shorter, longer = lengths[max(best.row - 1, 0)], lengths[min(best.row + 1, LENGTHS - 1)]
        lengths = between(shorter, longer, LENGTHS)
        best = _best(tasks, budget, lengths, price, W0)
    return best.plan if value(best.plan, W0, price) < value(whole, W0, price) else whole


class _Best(NamedTuple):
    row: int
    plan: Plan


def _best(tasks: Tasks, budget: int, lengths: Array, price: float, W0: float) -> _Best:
    """Return the best of these lengths, with the tasks that let a round end by then at least cost."""
    finished, seconds = _chances(tasks, lengths)
    order = np.argsort(-finished / seconds, axis=1, kind="stable")
    row = np.arange(len(lengths))
    results = np.cumsum(finished[row[:, None], order], axis=1)
    spent = np.cumsum(seconds[row[:, None], order], axis=1)
    # The B-th result is in by then with even odds if B - 1/2 are expected: the median of a count.
    counts = np.maximum((results < budget - 0.5).sum(axis=1) + 1, budget)
    enough = counts <= order.shape[1]
    cost = spent[row, np.minimum(counts, order.shape[1]) - 1]
    values = np.where(enough, lengths * np.maximum(1.0, cost / W0) ** (1.0 / price), np.inf)
    best = int(np.argmin(values))
    quota = tasks.per_worker(order[best, : counts[best]])
    length = float(lengths[best]) if enough[best] else np.inf
    return _Best(best, Plan(quota, length, float(cost[best]), length, 0.0, 0.0))


def _chances(tasks: Tasks, lengths: Array) -> tuple[Array, Array]:
    """Return the chance that each task is done by each length, and the expected seconds spent on it."""
    late, loss = tasks.late(lengths)
    unused = lengths[:, None] - tasks.m + loss  # of each length, after the task is done
    seconds = -tasks.since_previous(unused)
    seconds[:, tasks.first] += lengths[:, None]
    return 1.0 - late, np.maximum(seconds, LEAST_SECONDS * tasks.mu)


def _delayed(tasks: Tasks, delays: Array) -> Tasks:
    return tasks._replace(m=tasks.m + delays[tasks.worker]) if delays.any() else tasks
