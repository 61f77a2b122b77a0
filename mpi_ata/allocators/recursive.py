"""RAS, Recursive Allocation Selection: the quotas that minimise the longest expected time of a worker."""

import math
from heapq import heapify, heapreplace

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from mpi_ata.arrays import Array, IntArray

# Room for rounding when whole tasks are counted by division; far above any error, far below a task.
_SLACK = 1e-9
_FEW = 64  # up to this many workers plain numbers are faster than arrays


def recursive_allocation(scores: ArrayLike, budget: int, rng: Generator | None = None) -> IntArray:
    """Return the quotas a, summing to `budget`, that minimise max a_i s_i, with as few maxima as possible.

    This is what Algorithm RAS of the paper returns, in one pass instead of one call per task.  Workers
    whose score is zero share the whole budget uniformly; `rng` draws which of them get one task more
    than others (without it, the first ones).  A worker whose score is infinite gets nothing.
    """
    s, least = _checked(scores, budget)
    if least == 0.0:
        return spread(np.flatnonzero(s == 0.0), len(s), budget, rng)
    if len(s) <= _FEW:
        return np.array(_level_few(s.tolist(), budget), np.int64)
    a = np.zeros(len(s), np.int64)
    workers = np.sort(_smallest(s, budget))  # nobody beyond the B best can get a task
    a[workers] = _level(s[workers], budget)
    return a


def spread(workers: IntArray, n: int, budget: int, rng: Generator | None = None) -> IntArray:
    """Return quotas for n workers that share `budget` equally among `workers`, the remainder at random."""
    share, rest = divmod(budget, len(workers))
    a = np.zeros(n, np.int64)
    a[workers] = share
    if rest:
        more = slice(rest) if rng is None else rng.choice(len(workers), rest, replace=False, shuffle=False)
        a[workers[more]] += 1
    return a


def _checked(scores: ArrayLike, budget: int) -> tuple[Array, float]:
    """Return the scores as an array, and the least of them."""
    s = np.asarray(scores, np.float64)
    if budget < 1:
        raise ValueError(f"{budget=} must be at least 1")
    if s.ndim != 1 or not len(s):
        raise ValueError(f"scores must be a list of at least one number, not an array of shape {s.shape}")
    least = float(np.minimum.reduce(s))
    if not 0.0 <= least < np.inf:  # also catches NaN, which minimum propagates
        raise ValueError(f"scores must be at least 0, and one of them finite; the least is {least}")
    return s, least


def _smallest(values: Array, count: int) -> IntArray:
    """Return the indices of the `count` smallest values; of equal ones the first, on every machine."""
    if len(values) <= count:
        return np.arange(len(values))
    limit = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < limit)
    at = np.flatnonzero(values == limit)[: count - len(below)]
    return np.concatenate([below, at])


def _level(s: Array, B: int) -> IntArray:
    """Fill workers up to a common level, as water fills unequal steps; then the last tasks one by one.

    The B tasks of least a_i s_i are wanted.  The level B / sum(1 / s_i) is a lower bound of the optimal
    loss, so every whole task below it is among them; (B + n) / sum(1 / s_i) is an upper bound, and at
    most about 2 n tasks lie between the two.
    """
    with np.errstate(over="ignore"):  # a score beyond all reach may become infinite
        s = np.ldexp(s, -np.frexp(s.min())[1])  # exact, and keeps sums and products in range
    rate = 1.0 / s
    total = rate.sum()
    a: IntArray = (rate * (B / total * (1.0 - _SLACK))).astype(np.int64)
    highest = (rate * ((B + len(s)) / total * (1.0 + _SLACK))).astype(np.int64)
    more = highest - a
    worker = np.repeat(np.arange(len(s)), more)
    before = np.repeat(a + more - np.cumsum(more), more)
    task = np.arange(1, len(worker) + 1) + before  # a_i + 1, a_i + 2, ...
    chosen = _smallest(task * s[worker], B - int(a.sum()))
    a += np.bincount(worker[chosen], minlength=len(s))
    return a


def _level_few(s: list[float], B: int) -> list[int]:
    """Do the same for few workers: each of the last tasks goes to the worker that would finish it first."""
    exponent = -math.frexp(min(s))[1]
    half, rest = math.ldexp(1.0, exponent // 2), math.ldexp(1.0, exponent - exponent // 2)
    s = [score * half * rest for score in s]  # as above; the factor itself may be out of range
    rates = [1.0 / score for score in s]
    level = B / math.fsum(rates) * (1.0 - _SLACK)
    a = [int(level * rate) for rate in rates]
    ends = [((count + 1) * score, i) for i, (count, score) in enumerate(zip(a, s, strict=True))]
    heapify(ends)
    for _ in range(B - sum(a)):
        i = ends[0][1]
        a[i] += 1
        heapreplace(ends, ((a[i] + 1) * s[i], i))
    return a
