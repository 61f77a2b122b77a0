"""One round's results: orders, arrivals and losses, counted and reported to the allocator."""

import logging
from typing import Any, Protocol

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray, blocks
from mpi_ata.clusters import Arrival, Back, Cluster, Lost
from mpi_ata.clusters.interface import named
from mpi_ata.methods.base import OwnerLostError, check_anyone
from mpi_ata.methods.interface import NO_DELAYS, Round
from mpi_ata.methods.orders import Orders

log = logging.getLogger("mpi_ata")


class Collector:
    """Collects the results of one round and counts what becomes of its tasks."""

    def __init__(self, cluster: Cluster, allocator: Allocator | None = None) -> None:
        self.used = np.zeros(cluster.n, np.int64)
        self._cluster = cluster
        self._observe = None if allocator is None else allocator.observe
        self._observe_overrun = getattr(allocator, "observe_overrun", None)
        self._sure: IntArray | None = getattr(allocator, "sure", None)
        self._losses: tuple[Lost, ...] = ()
        self._returns: tuple[Back, ...] = ()
        self._mark = cluster.ledger.mark()
        self._began = self._ended = cluster.now()

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, counted as used and observed by the allocator; or a loss or return.

        TimeoutError after `timeout` seconds.
        """
        found = self._cluster.wait(timeout)
        if not isinstance(found, Arrival):
            self._note(found)
            return found
        worker, _, seconds, overhead = found
        self.used[worker] += len(seconds)
        if self._observe is not None:
            self._observe(worker, seconds, (), overhead)
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
        if self._observe is not None:
            self._observe(found.worker, found.seconds)

    def wait_for_owner(self) -> Arrival:
        """Return the next arrival; OwnerLostError on a loss, since no other worker has its data."""
        while not isinstance(found := self.wait(), Arrival):
            if isinstance(found, Lost):
                raise OwnerLostError(found, named(found.worker, self._cluster.identities[found.worker]))
        return found

    def collect(self, x: Any, k: int, a: IntArray, B: int, exact: bool) -> "Sum":
        """Order a_i tasks at x from worker i and return the sum of the first B results; stop the rest.

        `exact` if the quotas a sum to B: then each order comes back as a whole, and nothing is stopped.
        Otherwise that part of an order comes first and as a whole that the allocator is sure of.
        """
        g = Sum(a.nonzero()[0] if exact else None)
        self.collect_into(g, x, k, a, B, exact, summed=exact)
        return g

    def collect_into(
        self, g: "Results", x: Any, k: int, a: IntArray, B: int, exact: bool, summed: bool = False
    ) -> None:
        """Do the same with all results added to g; with `summed`, the cluster may add them up."""
        cluster, used, observe, b, at_once = self._cluster, self.used, self._observe, 0, False
        orders = None if exact else self._start_batches(x, k, a, B)
        if orders is None:
            active = a.nonzero()[0]
            cluster.start(active, x, k, a[active], together=exact, summed=summed)
            at_once = exact and isinstance(g, Sum) and self._collect_all(g, a)
            b = B if at_once else 0
        # Where all that was ordered is needed, it is taken as it comes; otherwise some may be stopped.
        wait_some = getattr(cluster, "wait_some", None) if exact else None
        while b < B:
            for found in (cluster.wait(),) if wait_some is None else wait_some(B - b):
                if not isinstance(found, Arrival):
                    self._note(found)
                    if isinstance(found, Lost):
                        orders = orders or Orders(cluster, x, k, a, exact)
                        orders.reissue(found.worker, used, B - b)
                        g.skip(found.worker)
                    continue
                worker, result, seconds, overhead = found  # as in wait(), but without a call per arrival
                g.add(worker, result)
                used[worker] += len(seconds)
                b += len(seconds)
                if observe is not None:
                    observe(worker, seconds, (), overhead)
                if orders is not None and b < B and len(surplus := orders.proceed(worker, used, B - b)):
                    self.stop(surplus)
        if not at_once:
            self.end()
        if self._observe_overrun is not None:
            for i, spent in cluster.overruns().items():
                self._observe_overrun(i, spent)
        if not exact:
            self.stop(np.flatnonzero(used < (orders.ordered if orders else a)))

    def _collect_all(self, g: "Sum", a: IntArray) -> bool:
        """Collect all results at once, if they come soon and as expected; return whether they did."""
        wait_all = getattr(self._cluster, "wait_all", None)
        if wait_all is None or (found := wait_all()) is None:
            return False
        self.end()
        g.add_all(found.results)
        self.used[:] = a
        if (observe := self._observe) is not None:
            arrivals = zip(found.workers.tolist(), found.seconds, found.overheads, strict=True)
            for worker, seconds, overhead in arrivals:
                observe(worker, seconds, (), overhead)
        return True

    def _start_batches(self, x: Any, k: int, a: IntArray, B: int) -> Orders | None:
        """Start all orders, if some have a batch of tasks that the allocator is sure of; otherwise none."""
        if self._sure is None:
            return None
        orders = Orders(self._cluster, x, k, a, together=False)
        return orders if orders.start_batches(self._sure, B) else None

    def end(self) -> None:
        """Note that the last needed arrival is in."""
        self._ended = self._cluster.now()

    def stop(self, workers: IntArray) -> Array:
        """Stop these workers, and return and let the allocator observe how long each was at its task."""
        seconds = self._cluster.stop(workers)
        if (observe := self._observe) is not None:
            for i, stopped in zip(workers.tolist(), zip(seconds.tolist(), strict=True), strict=True):
                observe(i, (), stopped)
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
        self._total: Array | None = None
        self._last: tuple[Array, ...] = ()  # added when the mean is taken, in one pass through memory
        self._workers = None if workers is None else workers.tolist()
        self._order = iter(self._workers or ())
        self._next = next(self._order, None)
        self._early: dict[int, Array | None] = {}  # None: lost
        self._expected: set[int] | None = None  # after a loss: workers whose own result is not in
        self._late: list[Array] = []  # of reissued tasks

    def add(self, worker: int, result: Array | None) -> None:
        """Add one worker's result; None if it was lost."""
        if self._workers is None:
            self._add(result)
            return
        if self._expected is not None:
            if worker not in self._expected and result is not None:
                self._late.append(result)
                return
            self._expected.discard(worker)
        self._early[worker] = result
        while self._next in self._early:
            result, self._next = self._early.pop(self._next), next(self._order, None)
            self._add(result, last=self._next is None)

    def add_all(self, results: Array) -> None:
        """Add the results of all workers: one row for each, in their order."""
        self._total = np.add.accumulate(results)[-1, ...].copy()  # numpy's sum may add in another order

    def skip(self, worker: int) -> None:
        """Do not wait for the result of a lost worker."""
        if self._workers is not None and self._expected is None:
            due = [] if self._next is None else self._workers[self._workers.index(self._next) :]
            self._expected = set(due).difference(self._early)
        if self._expected is not None and worker in self._expected:
            self.add(worker, None)

    def _add(self, result: Array | None, last: bool = False) -> None:
        if result is None:
            return
        if self._total is None:
            self._total = result
        elif last:
            self._last = (result,)
        else:
            self._total += result

    @property
    def empty(self) -> bool:
        """Whether no result came here, since workers share the sum."""
        return self._total is None and not self._late

    def mean(self, count: int) -> Array:
        """Return the sum divided by the number of gradients in it; computed in its own memory."""
        last = [*self._last, *self._late]
        if self._total is None and last:
            self._total, *last = last  # every worker of the original order was lost
        if self._total is None:
            raise RuntimeError("there is no mean of nothing")
        if not last:
            self._total /= count
            return self._total
        for part, *others in blocks(self._total, *last):
            for result in others:
                part += result
            part /= count
        return self._total
