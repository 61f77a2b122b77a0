"""ATA-Auto: foresees rounds from what it has learned and chooses quotas by that, without parameters."""

from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators import doubts
from mpi_ata.allocators.foresight import Plan
from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.recursive import spread
from mpi_ata.allocators.task_model import Speeds, TaskModel, flat
from mpi_ata.allocators.whole import plan_whole
from mpi_ata.arrays import Array, BoolArray, IntArray, State, entry
from mpi_ata.randomness import Purpose, Streams

SPARES = ("none", "auto")
PATIENCE = 200  # a plan is made again after 1 + k / PATIENCE rounds: by then means have moved by below 1 %


class ATAAuto:
    """Chooses the quotas of the shortest expected round; asks workers again while that may pay."""

    def __init__(
        self,
        n: int,
        budget: int,
        spares: str = "none",
        price: float = 1.0,
        seed: int = 0,
        overhead: bool = False,
    ) -> None:
        if spares not in SPARES:
            raise ValueError(f"{spares=} must be 'none' or 'auto'")
        if not price > 0:
            raise ValueError(
                f"{price=} must be above 0: per cent of worker time that one per cent of clock is worth"
            )
        self.n, self.budget = n, checked_budget(n, budget)
        self.spares, self.price, self.overhead = spares, price, overhead
        self.k = 0
        self.model = TaskModel(n)
        self._order = Streams(seed, Purpose.ALLOCATION).at(0).permutation(n)
        self._finished: list[tuple[int, Sequence[float]]] = []  # observed since the last decision
        self.due = 0  # the round in which to plan again
        self.quota = np.zeros(n, np.int64)  # what was planned
        self._available: BoolArray = np.ones(n, np.bool_)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self._fold()
        self.k += 1
        if self.k >= self.due or not np.array_equal(available, self._available):
            return self._decide(available)
        return self.quota

    def _decide(self, available: BoolArray) -> IntArray:
        self._available = available.copy()
        tried = np.flatnonzero(available & (self.model.N > 0.0))
        if not len(tried):
            return self._spread_over_untried(available)
        speeds = self.model.speeds(tried)
        near = _smallest(speeds.mu, 2 * self.budget + 8)
        plan = plan_whole(speeds.of(near), self.budget, self.price)
        self.quota = np.zeros(self.n, np.int64)
        self.quota[tried[near]] = plan.quota
        asked = self._untried_worth_a_task(available, tried, speeds, plan)
        if not len(asked):
            asked = self._doubted(tried, speeds, plan)
        if not len(asked):
            self.due = self.k + 1 + self.k // PATIENCE
            return self.quota
        self.due = self.k + 1
        quota = np.zeros(self.n, np.int64)
        quota[tried[near]] = doubts.replace_last(plan.quota, speeds.mu[near], len(asked))
        quota[asked] += 1
        return quota

    def _spread_over_untried(self, available: BoolArray) -> IntArray:
        self.due = self.k + 1
        workers = self._order[available[self._order]][: self.budget]
        return spread(workers, self.n, self.budget)

    def _untried_worth_a_task(
        self, available: BoolArray, tried: IntArray, speeds: Speeds, plan: Plan
    ) -> IntArray:
        """Return up to B untried workers, once their expected saving in k rounds pays for a slow round."""
        if len(tried) == self.n:
            return tried[:0]
        untried = self._order[available[self._order] & (self.model.N[self._order] == 0.0)][: self.budget]
        if not len(untried):
            return untried
        saving = doubts.saving_by_more(speeds.mu, self.budget, len(untried))
        return untried if self.k * saving >= speeds.mu.max() - plan.length else untried[:0]

    def _doubted(self, tried: IntArray, speeds: Speeds, plan: Plan) -> IntArray:
        """Return up to B idle workers that would be in the plan at their best plausible mean."""
        idle = self.quota[tried] == 0
        workers, mu, cv = tried[idle], speeds.mu[idle], (speeds.sd / speeds.mu)[idle]
        N = self.model.N[workers]
        odds = doubts.odds(doubts.rare(self.k), N, cv, mu, plan, self.budget)
        low = doubts.best_plausible(mu, N, cv, odds)
        found = np.flatnonzero(doubts.would_be_planned(low, cv, plan) & (odds > 2.0))
        return workers[found[np.argsort(low[found], kind="stable")[: self.budget]]]

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Learn the times of finished tasks."""
        if seconds:
            more = overhead / len(seconds) if self.overhead else 0.0
            self._finished.append((worker, [x + more for x in seconds] if more else seconds))

    def _fold(self) -> None:
        if self._finished:
            self.model.learn(*flat(self._finished))
            self._finished = []

    def state(self) -> State:
        """Return all that was learned, and the plan."""
        self._fold()
        own = {"k": np.array(self.k), "due": np.array(self.due), "quota": self.quota.copy()}
        return own | {"available": self._available.copy()} | self.model.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self.model.restore(state)
        self.k, self.due = int(entry(state, "k", self.k)), int(entry(state, "due", self.due))
        self.quota, self._available = entry(state, "quota", self.quota), entry(state, "available", self._available)

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds."""
        self.k += rounds
        seconds = known["seconds"] + (known["overhead"] if self.overhead else 0.0)
        self.model.inherit(known["tasks"], seconds, known["squares"])


def _smallest(values: Array, count: int) -> IntArray:
    """Return the indices of the `count` smallest values in increasing order, or all."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.sort(np.argpartition(values, count - 1)[:count])
