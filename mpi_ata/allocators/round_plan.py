"""Plans the quotas of the shortest round, by a normal approximation of each worker's time.

An exact plan orders as many tasks as the round needs.  One with spares orders more: the round ends with the
B-th result, and what is still running is stopped.
"""

import math
from typing import NamedTuple

import numpy as np

from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.allocators.task_model import SpeedEstimates
from mpi_ata.arrays import Array, BoolArray, IntArray

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_CDF = (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530)  # highest power first
_CDF_STEP = 0.2316419


def tail_and_loss(z: Array) -> tuple[Array, Array]:
    """Return P(Z > z) and E max(Z - z, 0) for a standard normal Z, to 1e-7 (Abramowitz-Stegun 26.2.17)."""
    size = np.abs(z)
    t = 1.0 / (1.0 + _CDF_STEP * size)
    polynomial = np.full_like(t, _CDF[0])
    for coefficient in _CDF[1:]:
        polynomial *= t
        polynomial += coefficient
    density = np.exp(-0.5 * z * z - _HALF_LOG_2_PI)
    tail = density * polynomial
    tail *= t
    tail = np.where(z < 0.0, 1.0 - tail, tail)
    return tail, np.maximum(density - z * tail, 0.0)


def quantile_above(chance: Array) -> Array:
    """Return the z with P(Z > z) = chance for chances up to 1/2, to 5e-4 (Abramowitz-Stegun 26.2.23)."""
    t = np.sqrt(-2.0 * np.log(chance))
    numerator = (0.010328 * t + 0.802853) * t + 2.515517
    return t - numerator / (((0.001308 * t + 0.189269) * t + 1.432788) * t + 1.0)


class RoundPlan(NamedTuple):
    """Quotas of some workers, and what a round with them is expected to be."""

    quota: IntArray
    length: float  # of the round
    worker_time: float
    limits: Array  # times L for which tasks were chosen by their costs
    room: Array  # what one more task may cost at each of them, in place of the dearest, so that this pays
    price: float  # of a second of worker time in those costs

    def wants(self, mu: Array, s: Array) -> BoolArray:
        """Return whether workers whose first task takes mu, with a deviation of s, would be in the plan."""
        _, loss = tail_and_loss((self.limits[:, None] - mu) / s)
        return np.asarray((loss * s + self.price * mu <= self.room[:, None]).any(axis=0))


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


def lay_out(speeds: SpeedEstimates, budget: int, longest: float) -> Tasks:
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


def expected_length(speeds: SpeedEstimates, quota: IntArray) -> float:
    """Return the expected time of a round with these quotas, or a little more: min over L of L + lateness."""
    busy = np.flatnonzero(quota)
    mu, sd, un = speeds.of(busy)
    q = quota[busy]
    m, s = q * mu, np.sqrt(q * sd * sd + (q * un) ** 2)
    limits = m.max() + s.max() * np.linspace(-1.0, 3.0, 33)
    _, loss = tail_and_loss((limits[:, None] - m) / s)
    return float(np.min(limits + (loss * s).sum(axis=1)))


SECTIONS, STAGES = 11, 3  # (2/11)^2 / 11 of the interval: L to about 0.5 %, below any noise in it
WIDEST = 4.0  # standard deviations beyond the mean where a task is as good as done
PRICES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of worker time, over the number of busy workers
TIE = 1e-6  # of its end: among tasks that cost the same, the earliest is taken
NEGLIGIBLE = 1e-3  # relative excess of worker time over W0 that is not worth a search


def plan_exactly(speeds: SpeedEstimates, budget: int, price: float = 1.0) -> tuple[RoundPlan, float]:
    """Return the quotas that make the round shortest, and the worker time W0 of the paper's quotas (RAS).

    Up to W0 worker time is free; beyond, each per cent of it must save 1 / price per cent of the round.
    """
    x = recursive_allocation(speeds.mu, budget)
    W0 = float(x @ speeds.mu)
    speeds = speeds.capped()
    lowest, highest = _interval(speeds, x, budget)
    tasks = lay_out(speeds, budget, highest)
    best = _shortest(tasks, budget, lowest, highest, 0.0)
    plans = [best._replace(quota=x, length=expected_length(speeds, x), worker_time=W0), best]
    if best.worker_time > W0 * (1.0 + NEGLIGIBLE):
        busy = np.count_nonzero(best.quota)
        plans += [_shortest(tasks, budget, lowest, highest, each / busy) for each in PRICES]
    # Several prices may give the same quotas: rounding must not decide which of them doubts are judged by.
    distinct = {plan.quota.tobytes(): plan for plan in reversed(plans)}
    return min(reversed(distinct.values()), key=lambda plan: value(plan, W0, price)), W0


def value(plan: RoundPlan, W0: float, price: float) -> float:
    """Return the length of a round, times what its worker time exceeds W0 by, at a price."""
    return float(plan.length * max(1.0, plan.worker_time / W0) ** (1.0 / price))


def _interval(speeds: SpeedEstimates, x: IntArray, budget: int) -> tuple[float, float]:
    """Return bounds on L: half the time of perfectly divisible tasks; when the slowest of x is done."""
    mu, sd, un = speeds
    ends = x * mu + WIDEST * np.sqrt(x * sd * sd + (x * un) ** 2)
    return 0.5 * budget / float((1.0 / mu).sum()), float(ends.max())


def _shortest(tasks: Tasks, budget: int, lowest: float, highest: float, price: float) -> RoundPlan:
    """Return the B tasks with the least sum of L + lateness beyond L, least over L too.

    That sum is an upper bound of the expected maximum of all ends.  It may have several minima: where L is
    short the fastest worker does everything, where it is longer others help.
    """
    base, steps = tasks.mu * price + TIE * tasks.m, np.arange(SECTIONS + 1.0) / SECTIONS
    curve: list[tuple[Array, Array, Array]] = []
    for _ in range(STAGES):
        limits = lowest * (highest / lowest) ** steps  # much faster than np.geomspace
        _, loss = tasks.late(limits)
        lateness = tasks.since_previous(loss)
        chosen = _least(lateness + base, budget)
        costs = np.take_along_axis(lateness + base, chosen, axis=1)
        sums = limits + costs.sum(axis=1)
        row = int(np.argmin(sums))
        curve.append((limits, sums, costs.max(axis=1)))
        lowest, highest = limits[max(row - 1, 0)], limits[min(row + 1, SECTIONS)]
    taken = chosen[row]
    length = float(limits[row] + lateness[row, taken].sum())
    wide, last = curve[0], curve[-1]
    at, totals, dearest = (np.append(a, b[row]) for a, b in zip(wide, last, strict=True))
    worker_time = float(tasks.mu[taken].sum())
    return RoundPlan(tasks.per_worker(taken), length, worker_time, at, totals[-1] - totals + dearest, price)


def _least(costs: Array, count: int) -> IntArray:
    """Return the indices of the `count` least costs in each row."""
    if costs.shape[1] <= count:
        return np.broadcast_to(np.arange(costs.shape[1]), costs.shape)
    return np.argpartition(costs, count - 1, axis=1)[:, :count]


# The best of 16 rounds, and of 16 around it: those next to it are 1 to 2 % apart.
LENGTHS, SPARE_STAGES = 16, 2
EXTRA = (0, 1, 2, 3, 5, 8)  # tasks beyond those with which a round ends in time with even odds
FARTHEST = 2.0  # times the length without spares: rounds hardly ever last longer
# Per cent of clock that a per cent of worker time must save even where less than W0 is spent.  Chosen by
# simulation: with 0.2 the mix takes up workers that hardly help, with 0.35 linear gives up clock.
THRIFT = 0.28
LEAST_VARIANCE = 1e-12  # of a number of results, so that there is a deviation to divide by
LEAST_COST = 1e-12  # of a task's mean, so that a ratio can be formed


def plan_with_spares(
    speeds: SpeedEstimates, delays: Array, budget: int, price: float, exact: RoundPlan, W0: float
) -> RoundPlan:
    """Return the quotas of the best round in which tasks may be stopped, or those without spares.

    `delays` are how long each worker is still busy at the start, since a task could not be stopped at once.
    """
    tasks = lay_out(speeds, budget, exact.length)
    tasks = tasks._replace(m=tasks.m + delays[tasks.worker])
    lowest = min(0.5 * budget / float((1.0 / speeds.mu).sum()), exact.length)  # half of divisible tasks
    highest = FARTHEST * exact.length
    best = exact
    for _ in range(SPARE_STAGES):
        found = _best(tasks, budget, price, W0, _around(best.length, lowest, highest))
        best = min(best, found, key=lambda plan: _spare_value(plan.length, plan.worker_time / W0, price))
    return best


def _around(length: float, lowest: float, highest: float) -> Array:
    """Return lengths from the lowest to the highest, the denser the closer they are to one of them."""
    steps = np.linspace(-1.0, 1.0, LENGTHS)
    farthest = np.where(steps < 0.0, length / lowest, highest / length)
    return np.asarray(length * farthest ** (steps * np.abs(steps)))


def _best(tasks: Tasks, budget: int, price: float, W0: float, lengths: Array) -> RoundPlan:
    """Return the best of the rounds that are planned for these lengths."""
    progress = _progress(tasks, lengths)
    chosen = _choices(progress, budget)
    length, cost = _expected(progress, chosen, budget)
    best = int(np.argmin(_spare_value(length, cost / W0, price)))
    quota = tasks.per_worker(np.flatnonzero(chosen[best]))
    nothing = np.zeros(0)  # doubts are for plans without spares
    return RoundPlan(quota, float(length[best]), float(cost[best]), nothing, nothing, 0.0)


def _spare_value(length: Array | float, effort: Array | float, price: float) -> Array:
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
    return _Progress(lengths, done, _variance(tasks, done), np.maximum(seconds, LEAST_COST * tasks.mu))


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
