"""ATA-Auto: predicts rounds from what it has learned and chooses the quotas; nothing has to be tuned."""

import math
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.auto.doubts import doubted, untried_pay, without_last
from mpi_ata.allocators.auto.foresight import Plan
from mpi_ata.allocators.auto.knowledge import Knowledge
from mpi_ata.allocators.auto.spares import plan_spares
from mpi_ata.allocators.auto.sure import sure_tasks
from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.allocators.auto.whole import plan_whole
from mpi_ata.allocators.change_detection import SpeedChange
from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.recursive import spread
from mpi_ata.arrays import Array, BoolArray, IntArray, State, entry
from mpi_ata.randomness import Purpose, Streams

SPARES = ("none", "auto")
PATIENCE = 200  # a plan is made again after 1 + k / PATIENCE rounds: by then means have moved by below 1 %
NEAR = 3  # workers that are considered per task, the fastest ones: all others are too slow
GREEDY_LOOK = 1000  # untried workers per task that one greedy round tries: with more it would cost too much
_SAVED = ("quota", "available", "length", "sure")


class ATAAuto:
    """Chooses the quotas of the shortest expected round; tries workers again while that may pay off.

    With `spares = "none"` quotas sum to the budget.  With "auto" more tasks may be started, and those that
    still run when the B-th result is in are stopped.  `price` is how many per cent of worker time one per
    cent of the clock is worth.
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
        self.spares, self.price = spares, price
        self.k = 0
        self.due = 0  # the round in which to plan again
        self.known = Knowledge(n, overhead)
        self.quota = np.zeros(n, np.int64)  # what was planned
        self.length = np.zeros(())  # how long a round with it was expected to be
        self.sure = np.zeros(n, np.int64)  # tasks of the plan that are done well before the round ends
        self.available = np.ones(n, np.bool_)  # when that was planned
        self._order = Streams(seed, Purpose.ALLOCATION).at(0).permutation(n)  # in which workers are tried

    @property
    def speed_changes(self) -> list[SpeedChange]:
        """The changes of workers' speeds that were noticed since the last decision."""
        return self.known.speed_changes

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self.known.learn(self.k)
        self.known.speed_changes = []
        self.k += 1
        due = min(self.due, self.known.suspects.first)
        if self.k >= due or not np.array_equal(available, self.available):
            return self._decide(available.copy())
        return self._with_probe()

    def _decide(self, available: BoolArray) -> IntArray:
        """Plan a round, and return its quotas, with tasks for workers that are worth a trial."""
        self.available, self.due = available, self.k + 1
        tried = np.flatnonzero(available & (self.known.model.N > 0.0))
        if not len(tried):
            return self._first_round()
        speeds = self._speeds(tried)
        plan = self._plan(tried, speeds)
        asked = self._suspects()
        if self._may_stop():
            return self._with_looks(asked)
        for ask in (self._untried_worth_a_task, self._doubted):
            asked = asked if len(asked) else ask(tried, speeds, plan)
        if not len(asked):
            self.due += self.k // PATIENCE
            return self.quota
        quota = without_last(self.quota, tried, speeds.mu, len(asked))
        quota[asked] += 1
        return quota

    def _first_round(self) -> IntArray:
        """Return quotas when nothing is known of any worker: greedy ones are the cheapest way to try all."""
        if self._may_stop():
            return self._with_looks(self._suspects())
        return spread(self._untried()[: self.budget], self.n, self.budget)

    def _may_stop(self) -> bool:
        """Return whether to plan with spares: not if stopped tasks are known to run to their end."""
        return self.spares == "auto" and bool(self.known.stoppable)

    def _speeds(self, tried: IntArray) -> Speeds:
        """Return the estimates to plan with; those of workers that were only ever stopped are guesses."""
        speeds = self.known.model.speeds(tried)
        return speeds if self._may_stop() else speeds.shrunk()

    def _plan(self, tried: IntArray, speeds: Speeds) -> Plan:
        """Plan the best round with workers that were tried, and keep its quotas."""
        near = _smallest(speeds.mu, NEAR * self.budget + 8)
        workers, near_speeds = tried[near], speeds.of(near)
        plan, W0 = plan_whole(near_speeds, self.budget, self.price)
        if self._may_stop():
            delays = self.known.delays(workers)
            plan = plan_spares(near_speeds, delays, self.budget, self.price, plan, W0)
            self.sure = np.zeros(self.n, np.int64)
            self.sure[workers] = sure_tasks(near_speeds, delays, plan.quota, plan.length)
        self.quota = np.zeros(self.n, np.int64)
        self.quota[workers], self.length = plan.quota, np.array(plan.length)
        return plan

    def _with_looks(self, asked: IntArray) -> IntArray:
        """Return the planned quotas, with one task for each asked worker and B for each untried one."""
        untried = self._untried()[: GREEDY_LOOK * self.budget]
        if not len(asked) and not len(untried):
            self.due += self.k // PATIENCE
            return self._with_probe()
        quota = self.quota.copy()
        quota[asked] = 1
        quota[untried] = self.budget  # they will be stopped soon
        return quota

    def _with_probe(self) -> IntArray:
        """Return the planned quotas; every sqrt(k) rounds, the worker that was idle longest gets a task."""
        if not self._may_stop() or self.k % math.ceil(math.sqrt(self.k)):
            return self.quota
        idle = np.flatnonzero(self.available & (self.quota == 0))
        if not len(idle):
            return self.quota
        quota, self.due = self.quota.copy(), self.k + 1
        quota[idle[np.argmin(self.known.heard[idle])]] = 1
        return quota

    def _suspects(self) -> IntArray:
        """Return up to B idle workers that are due for a trial, to see whether they are still slow."""
        workers = self.known.suspects.take(self.k)
        return np.asarray(workers[self.available[workers] & (self.quota[workers] == 0)][: self.budget])

    def _untried(self) -> IntArray:
        """Return the available workers of which nothing is known, in the order in which to try them."""
        untried = self.available & (self.known.model.N == 0.0)
        return np.asarray(self._order[untried[self._order]]) if untried.any() else np.zeros(0, np.int64)

    def _untried_worth_a_task(self, tried: IntArray, speeds: Speeds, plan: Plan) -> IntArray:
        """Return up to B untried workers, once their expected saving pays for a slow round."""
        untried = self._untried()[: self.budget]
        if len(untried) and untried_pay(self.k, speeds.mu, plan, self.budget, len(untried)):
            return untried
        return np.zeros(0, np.int64)

    def _doubted(self, tried: IntArray, speeds: Speeds, plan: Plan) -> IntArray:
        """Return up to B idle workers that would be in the plan at their best plausible mean."""
        idle = np.flatnonzero(self.quota[tried] == 0)
        workers = tried[idle]
        N = self.known.model.N[workers]
        return np.asarray(workers[doubted(self.k, speeds.of(idle), N, plan, self.budget)])

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Note the times of tasks, to learn from them before the next decision."""
        self.known.observe(self.k, worker, seconds, stopped, overhead)
        if self.speed_changes:
            self.due = 0

    def observe_overrun(self, worker: int, seconds: float) -> None:
        """Note how much longer a worker has been at a stopped task."""
        self.known.observe_overrun(worker, seconds)

    def state(self) -> State:
        """Return all that was learned, and the plan."""
        self.known.learn(self.k)
        own = {name: np.array(getattr(self, name)) for name in ("k", "due", "budget")}
        return own | {name: getattr(self, name).copy() for name in _SAVED} | self.known.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        saved = {name: entry(state, name, getattr(self, name)) for name in _SAVED}
        k, due = int(entry(state, "k", self.k)), int(entry(state, "due", self.due))
        self.known.restore(state)
        vars(self).update(saved, k=k, due=due if self._fits(state) else 0)

    def _fits(self, state: State) -> bool:
        """Return whether the plan of an earlier state, if there is one, is for the present budget."""
        planned = int(state["quota"].sum())
        same = int(state.get("budget", planned)) == self.budget
        return not planned or (same and (self.spares == "auto" or planned == self.budget))

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds."""
        self.k += rounds
        self.known.inherit(known)


def _smallest(values: Array, count: int) -> IntArray:
    """Return the indices of the `count` smallest values in increasing order, or all."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.sort(np.argpartition(values, count - 1)[:count])
