"""One round's results: orders, arrivals and losses, counted and reported to the allocator."""

import logging
from functools import reduce
from heapq import heapify, heapreplace
from operator import iadd, itemgetter
from typing import Any, Protocol

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.allocators.interface import AllocatorAbilities, NonAdaptive
from mpi_ata.arrays import Array, IntArray, blocks, total
from mpi_ata.clusters import Arrival, Back, Cluster, Lost
from mpi_ata.clusters.interface import named
from mpi_ata.methods.interface import NO_DELAYS, OwnerLostError, Round, check_anyone

log = logging.getLogger("mpi_ata")

FEW = 8  # numbers
WORKER, RESULT = itemgetter(0), itemgetter(1)  # of an arrival
NOBODY = np.zeros(0, np.int64)
LEAST_BATCH = 3  # tasks: the order that follows a batch costs about as much as a message saved


class RoundOrders:
    """The orders of a round with batches, or after a loss; some wait until their worker has ended another.

    A batch comes back as a whole.  Its results are reserved among the B of the round: when all others are in,
    what is not part of a batch is stopped.  So all batches are used, and there are never more than B results.
    """

    def __init__(self, cluster: Cluster, x: Any, k: int, a: IntArray, together: bool) -> None:
        self._cluster, self._x, self._k, self._together = cluster, x, k, together
        self.ordered = a.copy()  # tasks that each worker was ordered to do; of a lost one, those that it did
        self.waiting: dict[int, int] = {}  # tasks of the next order, by worker
        self.batches: dict[int, int] = {}  # tasks of the batches that are not in, by worker

    def start_batches(self, sure: IntArray, B: int) -> bool:
        """Start all orders, those of many sure tasks with a batch of these; False if there are none."""
        first = np.where(sure >= LEAST_BATCH, np.minimum(sure, self.ordered), 0)
        if not 0 < total(first) <= B:
            return False
        batched, rest = np.flatnonzero(first), self.ordered - first
        others = np.flatnonzero((first == 0) & (rest > 0))
        self.batches = dict(zip(batched.tolist(), first[batched].tolist(), strict=True))
        self.waiting = {i: rest.item(i) for i in self.batches if rest[i]}
        self.ordered = np.where(first > 0, first, self.ordered)
        self._cluster.start(batched, self._x, self._k, first[batched], together=True)
        self._cluster.start(others, self._x, self._k, rest[others])
        return True

    def proceed(self, worker: int, used: IntArray, needed: int) -> IntArray:
        """Start the next order of a worker that has delivered, and return whose orders are needed no more."""
        self.batches.pop(worker, None)
        np.maximum(self.ordered, used, out=self.ordered)  # spare tasks were not ordered here
        if needed > sum(self.batches.values()):
            self.start_next(worker, used)
            return NOBODY
        surplus = np.flatnonzero(used < self.ordered)
        surplus = surplus[[i not in self.batches for i in surplus.tolist()]]
        self.ordered[surplus] = used[surplus]
        self.waiting.clear()
        return surplus

    def reissue(self, worker: int, used: IntArray, needed: int) -> None:
        """Give the tasks that a lost worker leaves missing to those who will finish them soonest."""
        np.maximum(self.ordered, used, out=self.ordered)
        self.ordered[worker] = used[worker]
        self.waiting.pop(worker, None)
        self.batches.pop(worker, None)
        left = self.ordered - used
        for i, count in self.waiting.items():
            left[i] += count
        more = soonest(self._cluster, left, needed - total(left))
        for i in np.flatnonzero(more).tolist():
            self.waiting[i] = self.waiting.get(i, 0) + more.item(i)
            self.start_next(i, used)

    def start_next(self, worker: int, used: IntArray) -> None:
        """Start a worker's next order, if it has one and its previous one is done."""
        if worker in self.waiting and used[worker] == self.ordered[worker]:
            count = self.waiting.pop(worker)
            self.ordered[worker] += count
            self._cluster.start(np.array([worker]), self._x, self._k, count, self._together)


def reassign(cluster: Cluster, left: IntArray, worker: int) -> IntArray:
    """Move a lost worker's tasks in `left` to others and return those that had none before."""
    missing, left[worker] = left.item(worker), 0
    more = soonest(cluster, left, missing)
    idle = np.flatnonzero((left == 0) & (more > 0))
    left += more
    return idle


def soonest(cluster: Cluster, left: IntArray, count: int) -> IntArray:
    """Return how to divide `count` tasks among available workers so that they are done soonest.

    Worker i first does the left[i] tasks that it has; its mean task time so far counts, or that of all
    workers where it has delivered none.
    """
    means = cluster.ledger.stats.pooled_means()
    workers = np.flatnonzero(cluster.available)
    ends = list(zip((means * (left + 1))[workers].tolist(), workers.tolist(), strict=True))
    heapify(ends)
    more = np.zeros_like(left)
    for _ in range(count):
        end, i = ends[0]
        more[i] += 1
        heapreplace(ends, (end + means.item(i), i))
    return more


class Collector:
    """Collects the results of one round and counts what becomes of its tasks."""

    def __init__(self, cluster: Cluster, allocator: Allocator | None = None) -> None:
        self.used = np.zeros(cluster.n, np.int64)
        self._cluster = cluster
        self._wait_some = getattr(cluster, "wait_some", self._wait_one)
        self._allocator = allocator
        self._observe = (NonAdaptive() if allocator is None else allocator).observe
        self._losses: tuple[Lost, ...] = ()
        self._returns: tuple[Back, ...] = ()
        self._mark = cluster.ledger.mark()
        self._began = self._ended = cluster.now()

    def _wait_one(self, _: int) -> list[Arrival | Lost | Back]:
        """Wait on a cluster of the user's own that has no lists."""
        return [self._cluster.wait()]

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, counted as used and observed by the allocator; or a loss or return.

        TimeoutError after `timeout` seconds.
        """
        found = self._cluster.wait(timeout)
        if isinstance(found, Arrival):
            worker, _, seconds, overhead = found
            self.used[worker] += len(seconds)
            self._observe(worker, seconds, (), overhead)
        else:
            self._note(found)
        return found

    def _note(self, found: Lost | Back) -> None:
        """Log and remember a loss or a return; the times of a worker that is back are observed."""
        who = named(found.worker, self._cluster.identities[found.worker])
        if isinstance(found, Lost):
            log.warning("%s %s: %s", found.kind, who, found.why)
            self._losses += (found,)
            check_anyone(self._cluster, self._losses)
            return
        log.info("back %s: %s", who, found.why)
        self._returns += (found,)
        self._observe(found.worker, found.seconds)

    def wait_for_owner(self) -> Arrival:
        """Return the next arrival; OwnerLostError on a loss, since no other worker has its data."""
        while not isinstance(found := self.wait(), Arrival):
            if isinstance(found, Lost):
                raise OwnerLostError(found, self._cluster)
        return found

    def collect(self, g: "Results", x: Any, k: int, a: IntArray, B: int, exact: bool) -> None:
        """Order a_i tasks at x from worker i and add the first B results to g; stop the rest.

        `exact` if the quotas a sum to B: then each order comes back as a whole, and nothing is stopped.
        Otherwise that part of an order comes first and as a whole that the allocator is sure of.
        """
        cluster, used, observe, b = self._cluster, self.used, self._observe, 0
        orders = None if exact else self._start_batches(x, k, a, B)
        if orders is None:
            active = a.nonzero()[0]
            cluster.start(active, x, k, a[active], together=exact, summed=exact and isinstance(g, Sum))
        while b < B:
            # Beside batches, orders may be stopped before B results are in: then they come one by one.
            some: list[Any] = self._wait_some(B - b if orders is None else 1)
            self.end()
            if exact and isinstance(g, Sum) and g.add_all(some):  # most rounds of short tasks
                used[:] = a
                for worker, _, seconds, overhead in some:
                    observe(worker, seconds, (), overhead)
                break
            for found in some:
                if not isinstance(found, Arrival):
                    self._note(found)
                    if isinstance(found, Lost):
                        orders = orders or RoundOrders(cluster, x, k, a, exact)
                        orders.reissue(found.worker, used, B - b)
                        g.skip(found.worker)
                    continue
                worker, result, seconds, overhead = found  # as in wait(), but without a call per arrival
                g.add(worker, result)
                used[worker] += len(seconds)
                b += len(seconds)
                observe(worker, seconds, (), overhead)
                if orders is not None and b < B and len(surplus := orders.proceed(worker, used, B - b)):
                    self.stop(surplus)
        if (observe_overrun := getattr(self._allocator, "observe_overrun", None)) is not None:
            for i, spent in cluster.overruns().items():
                observe_overrun(i, spent)
        if not exact:
            self.stop(np.flatnonzero(used < (orders.ordered if orders else a)))

    def _start_batches(self, x: Any, k: int, a: IntArray, B: int) -> RoundOrders | None:
        """Start all orders, if some have a batch of tasks that the allocator is sure of; otherwise none."""
        if (sure := AllocatorAbilities.of(self._allocator).sure) is None:
            return None
        orders = RoundOrders(self._cluster, x, k, a, together=False)
        return orders if orders.start_batches(sure, B) else None

    def end(self) -> None:
        """Note that the last needed arrival is in."""
        self._ended = self._cluster.now()

    def stop(self, workers: IntArray) -> Array:
        """Stop these workers, and return and let the allocator observe how long each was at its task."""
        seconds = self._cluster.stop(workers)
        for i, spent in zip(workers.tolist(), seconds.tolist(), strict=True):
            self._observe(i, (), (spent,))
        return seconds

    def round(self, k: int, quota: IntArray, delays: IntArray = NO_DELAYS) -> Round:
        """Return what happened in the round."""
        stopped, lost, waste = self._cluster.ledger.changes(self._mark)
        duration = self._ended - self._began
        return Round(k, quota, self.used, stopped, lost, waste, duration, delays, self._losses, self._returns)


class Results(Protocol):
    """What the results of a round are added to."""

    def add(self, worker: int, result: Any) -> None:
        """Add what a worker has delivered."""

    def skip(self, worker: int) -> None:
        """Do not wait for a lost worker, whose tasks others do."""


class Sum:
    """Adds results in the order of `workers`, each as soon as those before it are in; or as they come.

    A sum of floats depends on the order.  A fixed one makes the same run give the same x, wherever
    the tasks ran and whoever was first.  Results of tasks that were reissued after a loss are added last,
    as they come.  All are added up in the memory of the first one.
    """

    def __init__(self, workers: IntArray | None = None) -> None:
        order = [] if workers is None else workers.tolist()
        self._count, self._order = len(order), iter(order)
        self._due = set(order)  # whose own result is not in
        self._next = next(self._order, None)  # whose result is added next
        self._early: dict[int, Array | None] = {}  # None: lost
        self._total: Array | None = None
        self._last: list[Array] = []  # added when the mean is taken, in one pass through memory
        self._late: list[Array] = []  # of reissued tasks, added after that

    def add(self, worker: int, result: Array | None) -> None:
        """Add one worker's result; None if it was lost."""
        if worker in self._due:
            self._due.remove(worker)
            self._early[worker] = result
            self._add_early()
        elif result is not None and self._count:
            self._late.append(result)
        elif self._total is None:
            self._total = result
        elif result is not None:
            self._total += result

    def add_all(self, found: list[Any]) -> bool:
        """Add the results of all workers, if these are their arrivals, and return whether they are."""
        if not len(found) == len(self._due) == self._count or set(map(type, found)) != {Arrival}:
            return False
        in_order = map(RESULT, sorted(found, key=WORKER))
        results = [result for result in in_order if result is not None]
        few = results[0].size <= FEW  # then one call of numpy for all is faster than one for each
        self._total = np.add.accumulate(results)[-1, ...].copy() if few else reduce(iadd, results)
        return True

    def _add_early(self) -> None:
        """Add the results whose turn has come."""
        while self._next in self._early:
            result, self._next = self._early.pop(self._next), next(self._order, None)
            if self._total is None or result is None:
                self._total = result if self._total is None else self._total
            elif self._next is None:
                self._last.append(result)
            else:
                self._total += result

    def skip(self, worker: int) -> None:
        """Do not wait for the result of a lost worker."""
        if worker in self._due:
            self.add(worker, None)

    def mean(self, count: int) -> Array:
        """Return the sum divided by the number of gradients in it; computed in its own memory."""
        last = [*self._last, *self._late]
        if self._total is None:
            self._total, *last = last  # every worker of the original order was lost
        if not last:
            self._total /= count
            return self._total
        for part, *others in blocks(self._total, *last):
            for result in others:
                part += result
            part /= count
        return self._total
