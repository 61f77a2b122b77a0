"""Quotas that sum to the budget, so that nothing is stopped: those of the shortest expected round."""

import numpy as np

from mpi_ata.allocators.auto.foresight import Plan, Tasks, between, expected_length, lay_out
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import Array, IntArray

SECTIONS, STAGES = 8, 3  # 9^-3 of the interval: L to about 0.2 %, far below any noise in it
WIDEST = 4.0  # standard deviations beyond the mean where a task is as good as done
PRICES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of worker time, over the number of busy workers
TIE = 1e-6  # of its end: among tasks that cost the same, the earliest is taken
NEGLIGIBLE = 1e-3  # relative excess of worker time over W0 that is not worth a search


def plan_whole(speeds: Speeds, budget: int, price: float = 1.0) -> tuple[Plan, float]:
    """Return the quotas that make the round shortest, and the worker time W0 of the paper's quotas (RAS).

    Up to W0 worker time is free; beyond, each per cent of it must save 1 / price per cent of the round.
    """
    x = recursive_allocation(speeds.mu, budget)
    W0 = float(x @ speeds.mu)
    speeds = speeds.capped()
    lowest, highest = _interval(speeds, x, budget)
    tasks = lay_out(speeds, budget, highest)
    best = _shortest(tasks, budget, lowest, highest, 0.0)
    plans = [best, Plan(x, expected_length(speeds, x), W0, best.limit, best.threshold, 0.0)]
    if best.worker_time > W0 * (1.0 + NEGLIGIBLE):
        busy = np.count_nonzero(best.quota)
        plans += [_shortest(tasks, budget, lowest, highest, each / busy) for each in PRICES]
    return min(plans, key=lambda plan: value(plan, W0, price)), W0


def value(plan: Plan, W0: float, price: float) -> float:
    """Return the length of a round, times what its worker time exceeds W0 by, at a price."""
    return float(plan.length * max(1.0, plan.worker_time / W0) ** (1.0 / price))


def _interval(speeds: Speeds, x: IntArray, budget: int) -> tuple[float, float]:
    """Return bounds on L: half the time of perfectly divisible tasks; when the slowest of x is done."""
    mu, sd, un = speeds
    ends = x * mu + WIDEST * np.sqrt(x * sd * sd + (x * un) ** 2)
    return 0.5 * budget / float((1.0 / mu).sum()), float(ends.max())


def _shortest(tasks: Tasks, budget: int, lowest: float, highest: float, price: float) -> Plan:
    """Return the B tasks with the least sum of L + lateness beyond L, least over L too.

    That sum is an upper bound of the expected maximum of all ends.  It falls as L grows while the expected
    number of late workers exceeds 1, so the L at which it is 1 is found by dividing an interval
    repeatedly.
    """
    base = tasks.mu * price + TIE * tasks.m
    for _ in range(STAGES):
        limits = between(lowest, highest, SECTIONS + 2)
        late, loss = tasks.late(limits[1:])
        costs = tasks.since_previous(loss)
        chosen = _least(costs + base, budget)
        count = tasks.since_previous(late)[np.arange(len(chosen))[:, None], chosen].sum(axis=1)
        row = int(np.argmax(count <= 1.0)) if count[-1] <= 1.0 else SECTIONS
        lowest, highest = limits[row], limits[row + 1]
    taken = chosen[row]
    length = highest + float(costs[row, taken].sum())
    threshold = float((costs[row, taken] + tasks.mu[taken] * price).max())
    return Plan(
        tasks.per_worker(taken), length, float(tasks.mu[taken].sum()), float(highest), threshold, price
    )


def _least(costs: Array, count: int) -> IntArray:
    """Return the indices of the `count` least costs in each row."""
    if costs.shape[1] <= count:
        return np.broadcast_to(np.arange(costs.shape[1]), costs.shape)
    return np.argpartition(costs, count - 1, axis=1)[:, :count]
