"""m-synchronous SGD: everyone works, the first results count, the rest is stopped."""

import math

import numpy as np

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.arrays import BoolArray, IntArray


class MSync(NonAdaptive):
    """Equal quotas for everyone, of which a round needs those of the m fastest workers.

    G. Begunov, A. Tyurin: Do We Need Asynchronous SGD? On the Near-Optimality of Synchronous Methods (2026),
    arXiv 2602.03802.  There a worker does one task per round, and m of them count: here too, where m is the
    budget.  Otherwise a quota is budget / m, rounded up, and the first `budget` single results count, also
    those of workers that do not finish their quota.  m is half of the workers unless given, and at most the
    budget.
    """

    def __init__(self, n: int, budget: int, m: int | None = None) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.m = checked_count(n, "m", min(budget, (n + 1) // 2) if m is None else m)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the same quota for everyone who is available."""
        count = min(self.m, int(np.count_nonzero(available)))
        return np.where(available, math.ceil(self.budget / count), 0)


def checked_count(n: int, name: str, count: int) -> int:
    """Return a number of workers that a round waits for, if there are so many."""
    if not 1 <= count <= n:
        raise ValueError(f"{name}={count} must be from 1 to the number of workers, {n}")
    return count
