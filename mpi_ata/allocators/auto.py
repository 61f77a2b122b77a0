"""ATA-Auto: predicts rounds from what it has learned and chooses the quotas; nothing has to be tuned."""

import logging
import math
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.change_detection import SpeedChange
from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.recursive import spread
from mpi_ata.allocators.round_plan import (
    RoundPlan,
    plan_exactly,
    plan_with_spares,
    quantile_above,
    task_numbers,
)
from mpi_ata.allocators.task_model import Knowledge, SpeedEstimates
from mpi_ata.arrays import Array, BoolArray, IntArray, State, restore_saved, saved
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams

log = logging.getLogger("mpi_ata")

CERTAINTY = 4.0  # standard deviations: task times have longer tails than the normal distribution


def sure_tasks(speeds: SpeedEstimates, delays: Array, quota: IntArray, length: float) -> IntArray:
    """Return how many tasks of each quota are done within a round of this length, almost surely.

    q tasks are done after q mu + z sqrt(q sd^2 + (q un)^2) at most, which is below q c + z sd sqrt(q) with
    c = mu + z un: this is the length at sqrt(q) = (sqrt((z sd)^2 + 4 c length) - z sd) / 2c.
    """
    late = CERTAINTY * speeds.sd
    each = speeds.mu + CERTAINTY * speeds.un
    left = np.maximum(length - delays, 0.0)
    root = (np.sqrt(late * late + 4.0 * each * left) - late) / (2.0 * each)
    return np.asarray(np.minimum(quota, (root * root).astype(np.int64)))


def doubted(k: int, speeds: SpeedEstimates, N: Array, plan: RoundPlan, budget: int) -> IntArray:
    """Return up to B idle workers that would be in the plan at their best plausible mean, the best first.

    That mean is so low that the true one is below with a chance of 1 / k', where another task pays.  In k
    rounds to come, a mean that is known to cv / sqrt(N) may save about k cv / sqrt(N) of a task; about N more
    tasks halve the doubt, and each makes a round longer, by mu - t, than one of its own t / B.
    """
    mu, cv = speeds.mu, speeds.sd / speeds.mu
    rare = 2.0 ** (math.floor(4.0 * math.log2(k)) / 4.0)  # k in steps: many are then tried in one slow round
    share = plan.length / budget
    odds = rare * cv / N**1.5 * share / (np.maximum(mu - plan.length, 0.0) + share)  # k'
    # The sum of N times is nearly a gamma of shape N / cv^2: quantiles of Wilson and Hilferty.
    h, z = N / (cv * cv), quantile_above(1.0 / np.maximum(odds, 2.0))
    low = mu / np.maximum(1.0 - 1.0 / (9.0 * h) + z / (3.0 * np.sqrt(h)), 1.0) ** 3
    found = np.flatnonzero((odds > 2.0) & (low < plan.length))  # a round is no shorter than any of its tasks
    found = found[np.argsort(low[found], kind="stable")[: NEAR * budget + 8]]
    low = low[found]
    return found[plan.wants(low, np.minimum(cv[found], 1.0) * low)][:budget]


def untried_pay(k: int, mu: Array, plan: RoundPlan, budget: int, count: int) -> bool:
    """Return whether a round with `count` untried workers pays off, if they are like those of means mu.

    It is assumed that k more rounds follow: if all lengths of a run are equally likely on a logarithmic
    scale, half of the runs that have done k rounds do as many again.
    """
    longest = float(np.quantile(mu, count / (count + 1.0)))  # the longest mean of so many
    return k * _saving_by_more(mu, budget, count) >= longest - plan.length


def _saving_by_more(mu: Array, budget: int, more: int) -> float:
    """Return how much shorter the round would be with more workers like these.

    Their share of the tasks would be m / (m + more), and their results come in the order of RAS.  Where the
    last of them come at the same time, that says nothing of faster workers: the round is assumed to be
    shorter in proportion, by half of that at least, as if the squares of the times were evenly spread.
    """
    share = len(mu) / (len(mu) + more)
    mu = np.sort(mu)[:budget]
    counts = np.minimum(mu[-1] / mu + 1.0, budget).astype(np.int64)
    ends = np.sort(task_numbers(counts) * np.repeat(mu, counts))[:budget]
    ends_before = np.interp(share * len(ends), np.arange(len(ends) + 1.0), np.concatenate([[0.0], ends]))
    return float(max(ends[-1] - ends_before, 0.5 * (1.0 - share) * ends[-1]))


def tests_needed(k: int, N: Array, mu: Array, budget: int) -> IntArray:
    """Return up to B idle workers with fewer tasks than (ln k)^1.5, those with the fewest first.

    However unlikely its tasks so far were, no worker is misjudged for good then: the chance that so many are
    misleading falls faster than any power of k.  Among workers with as many tasks the fastest is first.
    """
    needy = np.flatnonzero(math.log(k) ** 1.5 > N)
    if not len(needy):
        return needy
    order = N[needy] + mu[needy] / (2.0 * mu[needy].max())
    first = _smallest(order, budget)
    return needy[first[np.argsort(order[first], kind="stable")]]


def rounds_lost(mu: Array, plan: RoundPlan, budget: int) -> Array:
    """Return how many rounds of clock or worker time are lost if the first of these workers do a task each.

    Each does it in place of an average task of the plan: one entry for the first, the first two, ...
    """
    clock = np.maximum.accumulate(mu) / plan.length - 1.0
    worker_time = np.cumsum(mu) / plan.worker_time - np.arange(1.0, len(mu) + 1.0) / budget
    return np.maximum.accumulate(np.maximum(np.maximum(clock, worker_time), 0.0))


def without_last(quota: IntArray, workers: IntArray, mu: Array, count: int) -> IntArray:
    """Return the quotas without the `count` tasks that would be done last, by the means of `workers`."""
    a = quota[workers]
    worker = np.repeat(np.arange(len(a)), a)
    kept = np.argsort(task_numbers(a) * mu[worker], kind="stable")[: len(worker) - count]
    fewer = np.zeros_like(quota)
    fewer[workers] = np.bincount(worker[kept], minlength=len(a))
    return fewer


SPARES = ("none", "auto", "idle")
PATIENCE = 200  # a plan is made again after 1 + k / PATIENCE rounds: by then means have moved by below 1 %
NEAR = 3  # workers that are considered per task, the fastest ones: all others are too slow
TESTS = 0.005  # of clock and of worker time that tests of idle workers may take
LEFT_OUT = 100  # rounds after which a worker without a task is named, where there is one for everybody
GREEDY_LOOK = 1000  # untried workers per task that one greedy round tries: with more it would cost too much
_SAVED = ("k", "due", "quota", "available", "length", "sure", "tested")


class ATAAuto:
    """Chooses the quotas of the shortest expected round; tries workers again while that may pay off.

    With `spares = "none"` quotas sum to the budget.  With "auto" more tasks may be started, and those that
    still run when the B-th result is in are stopped.  With "idle", for jobs that share workers, so does
    whoever has nothing else to do.  `price` is how many per cent of worker time one per
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
        require(spares in SPARES, f"{spares=} must be 'none', 'auto' or 'idle'")
        rule = "must be above 0: per cent of worker time worth one per cent of clock"
        require(0 < price < math.inf, f"{price=} {rule}")
        self.n, self.budget = n, checked_budget(n, budget)
        self.spares, self.price = spares, price
        self.k = 0
        self.due = 0  # the round in which to plan again
        self.known = Knowledge(n, overhead)
        self.quota = np.zeros(n, np.int64)  # what was planned
        self.tested = 0.0  # rounds that tests of idle workers have cost
        self.length = np.zeros(())  # how long a round with it was expected to be
        self.sure = np.zeros(n, np.int64)  # tasks of the plan that are done well before the round ends
        self.available = np.ones(n, np.bool_)  # when that was planned
        self._began = 0  # the round in which this process began
        self._named = np.zeros(n, np.bool_)  # workers that the user knows to be left out
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
        speeds = self.known.model.speeds(tried)  # guesses where tasks were only ever stopped
        if self._may_stop():
            self._plan(tried, speeds)
            return self._with_looks(self._suspects())
        speeds = speeds.shrunk()
        plan = self._plan(tried, speeds)
        asked = self._worth_a_trial(tried, speeds, plan)
        if not len(asked):
            asked = self._tests(tried, speeds, plan)
        if not len(asked):
            self.due += self.k // PATIENCE
            self._name_left_out()
            return self.quota
        quota = without_last(self.quota, tried, speeds.mu, len(asked))
        quota[asked] += 1
        return quota

    def _first_round(self) -> IntArray:
        """Return quotas when nothing is known of any worker: greedy ones are the cheapest way to try all."""
        self.quota = np.zeros(self.n, np.int64)
        if self._may_stop():
            return self._with_looks(self._suspects())
        return spread(self._untried()[: self.budget], self.n, self.budget)

    def _may_stop(self) -> bool:
        """Return whether to plan with spares: not if stopped tasks are known to run to their end."""
        return self.spares == "auto" and bool(self.known.stoppable)

    def _plan(self, tried: IntArray, speeds: SpeedEstimates) -> RoundPlan:
        """Plan the best round with workers that were tried, and keep its quotas."""
        near = _smallest(speeds.mu, NEAR * self.budget + 8)
        workers, near_speeds = tried[near], speeds.of(near)
        plan, W0 = plan_exactly(near_speeds, self.budget, self.price)
        if self._may_stop():
            delays = self.known.delays(workers)
            plan = plan_with_spares(near_speeds, delays, self.budget, self.price, plan, W0)
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
        return self._order[untried[self._order]] if untried.any() else self._order[:0]

    def _worth_a_trial(self, tried: IntArray, speeds: SpeedEstimates, plan: RoundPlan) -> IntArray:
        """Return up to B workers: suspects, or untried ones that pay for a slow round, or doubted ones."""
        if len(suspects := self._suspects()):
            return suspects
        untried = self._untried()[: self.budget]
        if len(untried) and untried_pay(self.k, speeds.mu, plan, self.budget, len(untried)):
            return untried
        idle = np.flatnonzero(self.quota[tried] == 0)
        N = self.known.model.N[tried[idle]]
        return tried[idle[doubted(self.k, speeds.of(idle), N, plan, self.budget)]]

    def _tests(self, tried: IntArray, speeds: SpeedEstimates, plan: RoundPlan) -> IntArray:
        """Return idle workers to test, as many as all tests so far leave clock and worker time for."""
        mu = np.full(self.n, speeds.mu.max())  # an untried worker may be as slow as any
        mu[tried] = speeds.mu + CERTAINTY * speeds.un  # a mean of few tasks may be too low by chance
        idle = np.flatnonzero(self.available & (self.quota == 0))
        workers = idle[tests_needed(self.k, self.known.model.N[idle], mu[idle], self.budget)]
        lost = rounds_lost(mu[workers], plan, self.budget)
        count = int(np.searchsorted(lost, TESTS * self.k - self.tested, side="right"))
        if count:
            self.tested += lost.item(count - 1)
        return workers[:count]

    def _name_left_out(self) -> None:
        """Log once of each worker that it was left out for long, and why, where there are tasks for all."""
        if self.budget < self.n:
            return
        N, T = self.known.model.N, self.known.model.T
        unheard = self.k - np.maximum(self.known.heard, self._began) > LEFT_OUT
        idle = np.flatnonzero(self.available & (self.quota == 0) & (N > 0.0) & unheard & ~self._named)
        self._named[idle] = True
        if len(idle):
            log.warning(
                "no task for %s rounds: %s; with %s rounds are expected to be longer, or to cost more "
                "worker time than they save; now and then %s tested again",
                LEFT_OUT,
                ", ".join(f"worker {i} (estimated at {T[i] / N[i]:.4g} s per task)" for i in idle.tolist()),
                *(("it", "it is") if len(idle) == 1 else ("them", "they are")),
            )

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Note the times of tasks, to learn from them before the next decision."""
        self.known.observe(self.k, worker, seconds, stopped, overhead)
        if self.speed_changes:
            self.due = 0

    def observe_overrun(self, worker: int, seconds: float) -> None:
        """Note how much longer a worker has been at a stopped task."""
        self.known.overrun[worker] += seconds

    def state(self) -> State:
        """Return all that was learned, and the plan."""
        self.known.learn(self.k)
        return saved(self, (*_SAVED, "budget")) | self.known.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        state = {"tested": np.array(0.0)} | state  # older runs have tested nobody
        restore_saved(self, state, _SAVED)
        self.known.restore(state)
        self._began = self.k
        if not self._fits(state):
            self.due = 0

    def _fits(self, state: State) -> bool:
        """Return whether the plan of an earlier state, if there is one, is for the present budget."""
        planned = int(state["quota"].sum())
        same = int(state.get("budget", planned)) == self.budget
        return not planned or (same and (self.spares == "auto" or planned == self.budget))

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds."""
        self.k += rounds
        self._began = self.k
        self.tested = TESTS * self.k  # the time of earlier runs is not this run's to spend
        self.known.inherit(known)


def _smallest(values: Array, count: int) -> IntArray:
    """Return the indices of the `count` smallest values in increasing order, or all."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.sort(np.argpartition(values, count - 1)[:count])
