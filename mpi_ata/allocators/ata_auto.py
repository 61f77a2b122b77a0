"""ATA-Auto: foresees rounds from what it has learned and chooses quotas by that, without parameters."""

import logging
import math
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.doubts import doubted, untried_pay, without_last
from mpi_ata.allocators.foresight import Plan
from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.observations import Observations
from mpi_ata.allocators.recursive import spread
from mpi_ata.allocators.spares import plan_spares
from mpi_ata.allocators.task_model import Speeds, TaskModel
from mpi_ata.allocators.whole import plan_whole
from mpi_ata.arrays import Array, BoolArray, IntArray, State, entry
from mpi_ata.randomness import Purpose, Streams

log = logging.getLogger("mpi_ata")

SPARES = ("none", "auto")
PATIENCE = 200  # a plan is made again after 1 + k / PATIENCE rounds: by then means have moved by below 1 %
NEAR = 3  # workers that are considered per task, the fastest ones: others are too slow, however few deviate
GREEDY_LOOK = (
    1000  # untried workers per task that one greedy round looks at: with more it would cost too much
)
_SAVED = ("quota", "available", "heard", "blocked", "length")


class ATAAuto:
    """Chooses the quotas of the shortest expected round; asks workers again while that may pay.

    With `spares = "none"` quotas sum to the budget.  With "auto" more tasks may be started, and those that
    run when the B-th result is in are stopped.  `price` is how many per cent of worker time one per cent
    of the clock is worth.
    """

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
        if not 0 < price < math.inf:
            raise ValueError(f"{price=} must be above 0: per cent of worker time worth one per cent of clock")
        self.n, self.budget = n, checked_budget(n, budget)
        self.spares, self.price = spares == "auto", price
        self.k = 0
        self.due = 0  # the round in which to plan again
        self.model = TaskModel(n)
        self.quota = np.zeros(n, np.int64)  # what was planned
        self.length = np.zeros(())  # how long a round with it was expected to be
        self.available = np.ones(n, np.bool_)  # when that was planned
        self.heard = np.zeros(n, np.int64)  # the last round in which each worker did something
        self.blocked = np.zeros(n)  # rounds in which each worker was still at a task that had been stopped
        self._observations = Observations(overhead)
        self._order = Streams(seed, Purpose.ALLOCATION).at(0).permutation(n)  # in which workers are tried

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self._learn()
        self.k += 1
        if self.k >= self.due or not np.array_equal(available, self.available):
            return self._decide(available.copy())
        return self._with_probe()

    def _decide(self, available: BoolArray) -> IntArray:
        """Plan a round, and return its quotas with those of workers that are worth a look."""
        self.available, self.due = available, self.k + 1
        tried = np.flatnonzero(available & (self.model.N > 0.0))
        if not len(tried):
            return self._first_round()
        speeds = self.model.speeds(tried)
        plan = self._plan(tried, speeds)
        if self._stops_are_free():
            return self._with_looks(len(tried))
        asked = self._untried_worth_a_task(speeds, plan)
        if not len(asked):
            asked = self._doubted(tried, speeds, plan)
        if not len(asked):
            self.due += self.k // PATIENCE
            return self.quota
        quota = without_last(self.quota, tried, speeds.mu, len(asked))
        quota[asked] += 1
        return quota

    def _first_round(self) -> IntArray:
        """Return quotas for workers of which nothing is known: greedy ones are the cheapest look at them."""
        if self.spares:
            return self._with_looks(0)
        return spread(self._untried()[: self.budget], self.n, self.budget)

    def _stops_are_free(self) -> bool:
        return self.spares and not self.blocked.any()

    def _plan(self, tried: IntArray, speeds: Speeds) -> Plan:
        """Plan the best round with workers that were tried, and keep its quotas."""
        near = _smallest(speeds.mu, NEAR * self.budget + 8)
        workers, near_speeds = tried[near], speeds.of(near)
        plan, W0 = plan_whole(near_speeds, self.budget, self.price)
        if self.spares:
            # Of the rounds after a stop, those in which the worker was not back in time.
            delays = float(self.length) * self.blocked[workers] / np.maximum(self.model.stops[workers], 1.0)
            plan = plan_spares(near_speeds, delays, self.budget, self.price, plan, W0)
        self.quota = np.zeros(self.n, np.int64)
        self.quota[workers], self.length = plan.quota, np.array(plan.length)
        return plan

    def _with_looks(self, tried: int) -> IntArray:
        """Return the planned quotas, and greedy ones of untried workers: they are stopped soon."""
        if tried == self.n or not len(untried := self._untried()):
            self.due += self.k // PATIENCE
            return self._with_probe()
        quota = self.quota * self.available
        quota[untried[: GREEDY_LOOK * self.budget]] = self.budget
        return quota

    def _with_probe(self) -> IntArray:
        """Return the planned quotas, every sqrt(k) rounds with one task more, for who was idle longest."""
        if not self._stops_are_free() or self.k % math.ceil(math.sqrt(self.k)):
            return self.quota
        idle = np.flatnonzero(self.available & (self.quota == 0))
        if not len(idle):
            return self.quota
        quota, self.due = self.quota.copy(), self.k + 1
        quota[idle[np.argmin(self.heard[idle])]] = 1
        return quota

    def _untried(self) -> IntArray:
        """Return the available workers of which nothing is known, in the order in which to try them."""
        untried = self.available & (self.model.N == 0.0)
        return np.asarray(self._order[untried[self._order]])

    def _untried_worth_a_task(self, speeds: Speeds, plan: Plan) -> IntArray:
        """Return up to B untried workers, once their expected saving pays for a slow round."""
        if len(speeds.mu) == self.n or not len(untried := self._untried()[: self.budget]):
            return np.zeros(0, np.int64)
        pays = untried_pay(self.k, speeds.mu, plan, self.budget, len(untried))
        return untried if pays else untried[:0]

    def _doubted(self, tried: IntArray, speeds: Speeds, plan: Plan) -> IntArray:
        """Return up to B idle workers that would be in the plan at their best plausible mean."""
        idle = np.flatnonzero(self.quota[tried] == 0)
        workers = tried[idle]
        return workers[doubted(self.k, speeds.of(idle), self.model.N[workers], plan, self.budget)]

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Note the times of tasks, to learn from them before the next decision."""
        self._observations.add(worker, seconds, stopped, overhead)

    def _learn(self) -> None:
        """Learn from what was observed since the last decision."""
        seen = self._observations
        if seen.finished:
            workers, seconds = seen.finished_tasks()
            self.model.learn(workers, seconds)
            self.heard[workers] = self.k
        if seen.stopped:
            workers, seconds = seen.stopped_tasks()
            self.model.learn_stopped(workers, seconds)
            self.heard[workers] = self.k
            self._note_blocked(seen.blocked_workers())
        seen.clear()

    def _note_blocked(self, workers: list[int]) -> None:
        """Note that stops cost a whole round where tasks run on to their end, so that few pay."""
        if workers and not self.blocked.any():
            log.warning(
                "ata-auto: tasks of worker %d ran on after they had been stopped; "
                "spares will be ordered only where they pay in spite of that",
                workers[0],
            )
        self.blocked[workers] += 1.0

    def state(self) -> State:
        """Return all that was learned, and the plan."""
        self._learn()
        own = {"k": np.array(self.k), "due": np.array(self.due)}
        return own | {name: getattr(self, name).copy() for name in _SAVED} | self.model.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        saved = {name: entry(state, name, getattr(self, name)) for name in _SAVED}
        k, due = int(entry(state, "k", self.k)), int(entry(state, "due", self.due))
        self.model.restore(state)
        vars(self).update(saved, k=k, due=due)

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds."""
        self.k += rounds
        seconds = known["seconds"] + (known["overhead"] if self._observations.overhead else 0.0)
        self.model.inherit(known["tasks"], seconds, known["squares"], known["unfinished"])


def _smallest(values: Array, count: int) -> IntArray:
    """Return the indices of the `count` smallest values in increasing order, or all."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.sort(np.argpartition(values, count - 1)[:count])
