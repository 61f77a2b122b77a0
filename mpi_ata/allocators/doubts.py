"""Which idle workers are worth a task because they may be faster than they seem, or have not been tried."""

import math

import numpy as np

from mpi_ata.allocators.foresight import Plan
from mpi_ata.allocators.normal import quantile_above, tail_and_loss
from mpi_ata.arrays import Array, IntArray


def rare(k: int) -> float:
    """Return k rounded down to a quarter power of 2: doubts then come many in one slow round."""
    return float(2.0 ** (math.floor(4.0 * math.log2(k)) / 4.0))


def odds(k: float, N: Array, cv: Array, mu: Array, plan: Plan, budget: int) -> Array:
    """Return k', one over the chance of error at which another task of a worker pays.

    In k rounds to come, a mean that is known to cv / sqrt(N) may save about k cv / sqrt(N) of a task; about
    N more tasks halve the doubt, and each makes a round longer, by mu - t, than one of its own t / B.
    """
    share = plan.length / budget
    excess = np.maximum(mu - plan.length, 0.0) + share
    return np.asarray(k * cv / N**1.5 * share / excess)


def best_plausible(mu: Array, N: Array, cv: Array, odds: Array) -> Array:
    """Return lower bounds of the means: they are below with a chance of 1 / odds, if that is below 1/2.

    The sum of N times is nearly a gamma of shape N / cv^2, whose quantiles are those of Wilson and Hilferty.
    """
    h = N / (cv * cv)
    z = quantile_above(1.0 / np.maximum(odds, 2.0))
    return np.asarray(mu / (1.0 - 1.0 / (9.0 * h) + z / (3.0 * np.sqrt(h))) ** 3)


def would_be_planned(low: Array, cv: Array, plan: Plan) -> Array:
    """Return whether a task of workers with these means would cost no more than the last one planned."""
    s = np.minimum(cv, 1.0) * low
    _, loss = tail_and_loss((plan.limit - low) / s)
    return np.asarray(loss * s + plan.price * low <= plan.threshold)


def saving_by_more(mu: Array, budget: int, more: int) -> float:
    """Return how much shorter the round would be with `more` untried workers, if they are like the others.

    With a share of m / (m + more) of the tasks on the m workers that are known: their finishing times
    are those of RAS.
    """
    counts = np.minimum(np.sort(mu)[:budget].max() / mu + 1.0, budget).astype(np.int64)
    q = np.arange(1.0, counts.sum() + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.sort(q * np.repeat(mu, counts))[:budget]
    fewer = len(ends) * len(mu) / (len(mu) + more)
    return float(ends[-1] - np.interp(fewer, np.arange(len(ends) + 1.0), np.concatenate([[0.0], ends])))


def replace_last(quota: IntArray, mu: Array, count: int) -> IntArray:
    """Return the quotas without the `count` tasks that would be done last."""
    worker = np.repeat(np.arange(len(quota)), quota)
    q = np.arange(1.0, len(worker) + 1) - np.repeat(np.cumsum(quota) - quota, quota)
    kept = np.argsort(q * mu[worker], kind="stable")[: len(worker) - count]
    return np.bincount(worker[kept], minlength=len(quota)).astype(np.int64)
