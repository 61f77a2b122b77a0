"""Allocators to compare with: m-sync, a plain bandit, and quotas proportional to speed."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from mpi_ata.allocators.ata import ATAEmpirical
from mpi_ata.allocators.change_detection import SHORTEST
from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.allocators.recursive import spread
from mpi_ata.arrays import Array, BoolArray, IntArray, State, restore_saved, saved
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams


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
    require(1 <= count <= n, f"{name}={count} must be from 1 to the number of workers, {n}")
    return count


class Bandit(ATAEmpirical):
    """Equal shares for the workers whose lower confidence bounds are least, `picks` of them.

    M. Egger, R. Bitar, A. Wachter-Zeh, D. Gündüz: Cost-Efficient Distributed Learning via Combinatorial
    Multi-Armed Bandits (2022), arXiv 2202.08302.  There a picked worker does one task, and the number of
    picks grows during a run.  Here it is fixed, since a round always needs `budget` tasks: half of the
    workers unless given, and at most the budget.  The bounds are those of ATA-Empirical, so that the two
    differ in nothing but the quotas.
    """

    def __init__(
        self,
        n: int,
        budget: int,
        picks: int | None = None,
        eta: float = 1.0,
        seed: int = 0,
        overhead: bool = False,
        forget: bool = False,
    ) -> None:
        super().__init__(n, budget, eta, seed, overhead, forget)
        self.picks = checked_count(n, "picks", min(budget, (n + 1) // 2) if picks is None else picks)

    def divide(self, bounds: Array, rng: Generator | None) -> IntArray:
        """Return equal shares for those with the least bounds; of equal ones, those tried least often.

        The remainder goes to the least bounds.
        """
        count = min(self.picks, self.budget, np.count_nonzero(bounds < np.inf))
        return spread(np.lexsort((self.K, bounds))[:count], self.n, self.budget)


class Proportional:
    """Shares that let all workers need the same time, corrected in each round by a proportional controller.

    S. Tyagi, P. Sharma: OmniLearn: A Framework for Distributed Deep Learning over Heterogeneous Clusters
    (2025), arXiv 2503.17469.  There the shares are large mini-batches of workers that all take part in each
    round.  Here they may be fractions of a task: a quota is the share rounded up or down at random, right on
    average, so a worker with a share of 0.1 has a task in every tenth round.  Shares are corrected in every
    round, since another quota costs nothing here, and there are no limits for the memory of a worker.
    """

    def __init__(self, n: int, budget: int, gain: float = 1.0, smoothing: float = 0.1, seed: int = 0) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.gain, self.smoothing = _checked_part("gain", gain), _checked_part("smoothing", smoothing)
        self.k = 0
        self.b = np.full(n, budget / n)  # the shares, in tasks
        self.K = np.zeros(n, np.int64)  # measurements of each worker
        self.t = np.zeros(n)  # its seconds per task, smoothed
        self.spent = np.zeros(n)  # seconds on stopped tasks, which count as time of its next result
        self._streams = Streams(seed, Purpose.ALLOCATION)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self.k += 1
        if self.K.any():
            self._control()
        u = self._streams.at(self.k).random()
        a = np.zeros(self.n, np.int64)
        a[available] = rounded(self.b[available], self.budget, u)
        return a

    def _control(self) -> None:
        """Take tasks from those who need more than the mean time for their shares, and give them to others.

        A worker that needs e seconds more does so for e / t tasks, so b - gain e / t is its next share,
        written here so that it stays above 0.  A worker that was never measured keeps its share.
        """
        known = self.K > 0
        b, t = self.b[known], self.t[known]
        self.b[known] = (1.0 - self.gain) * b + self.gain * (b * t).mean() / t
        self.b *= self.budget / self.b.sum()

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Smooth the seconds per task; the first measurements are averaged."""
        spent = self.spent.item(worker) + math.fsum(seconds) + math.fsum(stopped)
        self.spent[worker] = 0.0 if seconds else spent
        if seconds:
            self.K[worker] += 1
            weight = max(1.0 / self.K.item(worker), self.smoothing)
            t = self.t.item(worker)
            self.t[worker] = max(t + weight * (spent / len(seconds) - t), SHORTEST)

    def state(self) -> State:
        """Return the round counter, the shares and the measurements."""
        return saved(self, _SAVED)

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        restore_saved(self, state, _SAVED)

    def inherit(self, rounds: int, known: State) -> None:
        """Start from the mean times of earlier rounds."""
        self.k += rounds
        some = known["tasks"] > 0
        seconds = (known["seconds"] + known["unfinished"])[some]
        self.K[some] = known["tasks"][some]
        self.t[some] = np.maximum(seconds / known["tasks"][some], SHORTEST)


_SAVED = ("k", "b", "K", "t", "spent")


def rounded(shares: Array, budget: int, u: float) -> IntArray:
    """Return counts that sum to `budget`, each its part of it rounded up or down; u from 0 to 1 decides.

    The parts are laid end to end, and tasks are the whole numbers on that line, moved by u.
    """
    ends = np.cumsum(shares)
    marks = np.minimum(np.floor(ends * (budget / ends[-1]) + u), budget).astype(np.int64)
    marks[-1] = budget
    counts: IntArray = np.diff(marks, prepend=0)
    return counts


def _checked_part(name: str, value: float) -> float:
    """Return a number above 0 and up to 1."""
    require(0.0 < value <= 1.0, f"{name}={value} must be above 0 and at most 1")
    return value
