"""Finds idle workers that are worth a task: they may be faster than they seem, or have not been tried."""

import math

import numpy as np

from mpi_ata.allocators.auto.foresight import Plan, task_numbers
from mpi_ata.allocators.auto.normal import quantile_above, tail_and_loss
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.arrays import Array, IntArray


def doubted(k: int, speeds: Speeds, N: Array, plan: Plan, budget: int) -> IntArray:
    """Return up to B idle workers that would be in the plan at their best plausible mean, the best first."""
    mu, cv = speeds.mu, speeds.sd / speeds.mu
    odds = _odds(_rare(k), N, cv, mu, plan, budget)
    low = _best_plausible(mu, N, cv, odds)
    found = np.flatnonzero(_would_be_planned(low, cv, plan) & (odds > 2.0))
    return found[np.argsort(low[found], kind="stable")[:budget]]


def _rare(k: int) -> float:
    """Return k rounded down to a quarter power of 2: many workers are then tried in one slow round."""
    return float(2.0 ** (math.floor(4.0 * math.log2(k)) / 4.0))


def _odds(k: float, N: Array, cv: Array, mu: Array, plan: Plan, budget: int) -> Array:
    """Return k', one over the chance of error at which another task of a worker pays.

    In k rounds to come, a mean that is known to cv / sqrt(N) may save about k cv / sqrt(N) of a task; about
    N more tasks halve the doubt, and each makes a round longer, by mu - t, than one of its own t / B.
    """
    share = plan.length / budget
    excess = np.maximum(mu - plan.length, 0.0) + share
    return np.asarray(k * cv / N**1.5 * share / excess)


def _best_plausible(mu: Array, N: Array, cv: Array, odds: Array) -> Array:
    """Return lower bounds of the means: a mean is below with a chance of 1 / odds, if that is below 1/2.

    The sum of N times is nearly a gamma of shape N / cv^2, whose quantiles are those of Wilson and Hilferty.
    """
    h = N / (cv * cv)
    z = quantile_above(1.0 / np.maximum(odds, 2.0))
    return np.asarray(mu / np.maximum(1.0 - 1.0 / (9.0 * h) + z / (3.0 * np.sqrt(h)), 1.0) ** 3)


def _would_be_planned(low: Array, cv: Array, plan: Plan) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return for each worker, at this mean, whether a task would cost no more than the last one planned."""
    s = np.minimum(cv, 1.0) * low
    _, loss = tail_and_loss((plan.limit - low) / s)
    return np.asarray(loss * s + plan.price * low <= plan.threshold)


def untried_pay(k: int, mu: Array, plan: Plan, budget: int, count: int) -> bool:
    """Return whether a round with `count` untried workers pays off, if they are like those of means mu.

    It is assumed that k more rounds follow: if all lengths of a run are equally likely on a logarithmic
    scale, half of the runs that have done k rounds do as many again.
    """
    longest = float(np.quantile(mu, count / (count + 1.0)))  # the longest mean of so many
    return k * _saving_by_more(mu, budget, count) >= longest - plan.length


def _saving_by_more(mu: Array, budget: int, more: int) -> float:
    """Return how much shorter the round would be with more workers like these.

    Their share of the tasks would be m / (m + more), and their results come in the order of RAS.
    """
    share = len(mu) / (len(mu) + more)
    mu = np.sort(mu)[:budget]
    counts = np.minimum(mu[-1] / mu + 1.0, budget).astype(np.int64)
    ends = np.sort(task_numbers(counts) * np.repeat(mu, counts))[:budget]
    ends_before = np.interp(share * len(ends), np.arange(len(ends) + 1.0), np.concatenate([[0.0], ends]))
    return float(ends[-1] - ends_before)


def without_last(quota: IntArray, workers: IntArray, mu: Array, count: int) -> IntArray:
    """Return the quotas without the `count` tasks that would be done last, by the means of `workers`."""
    a = quota[workers]
    worker = np.repeat(np.arange(len(a)), a)
    kept = np.argsort(task_numbers(a) * mu[worker], kind="stable")[: len(worker) - count]
    fewer = np.zeros_like(quota)
    fewer[workers] = np.bincount(worker[kept], minlength=len(a))
    return fewer
