"""What the messages of workers mean for orders, accounts and health."""

import math
import time

from mpi_ata.arrays import Array
from mpi_ata.clusters.batch import Batch
from mpi_ata.clusters.channel import (
    ARRIVAL,
    BROKEN,
    EXCHANGED,
    FAILED,
    GLOBAL_RANDOM,
    INLINE,
    LOST,
    NODE_MEMORY,
    REACHABLE,
    READY,
    SHARED,
    STOPPED,
    Message,
)
from mpi_ata.clusters.exchange.gathering import Gathering
from mpi_ata.clusters.failures import Failures, plausible_seconds
from mpi_ata.clusters.interface import Arrival, Arrivals, Back, Lost, received, surely_finite
from mpi_ata.clusters.orders import Order
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.clusters.wire import results_wire
from mpi_ata.errors import BadResultError
from mpi_ata.problems import returns_values

SLACK = 1.0  # seconds by which clocks of two processes may differ


class Reception:
    """Processes the messages of a pool's workers; `drawn` if reported times are not measured."""

    def __init__(self, pool: WorkerPool, gathering: Gathering, drawn: bool) -> None:
        self._pool, self._orders, self._ledger, self._draws = pool, pool.orders, pool.ledger, pool.draws
        self._gathering, self._failures = gathering, Failures(pool)
        self.slack = math.inf if drawn else SLACK  # seconds by which reported times may be too long
        self._computes = returns_values(pool.problem)  # packed values
        self._results = results_wire(pool.problem, pool.template)

    def take(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return what has come by now: arrivals of at most this many tasks, up to a loss or return."""
        found: list[Arrival | Lost | Back] = []
        poll = self._pool.connections.poll
        self._pool.connections.begin_waiting()
        # What an exchange has brought comes before the loss of a worker that took part in it.
        while tasks > 0 and not self._pool.arrived and (message := poll()) is not None:
            if (handled := self.handle(message)) is None:
                continue
            found.append(handled)
            if not isinstance(handled, Arrival):
                break
            tasks -= len(handled.seconds)
        return found

    def handle(self, message: Message) -> Arrival | Lost | Back | None:
        """Process a message, and return what the method has to know, if anything."""
        worker = self._pool.worker_of[message.sender]
        order = self._orders.running.get(worker)
        if message.kind == ARRIVAL and order is not None and order.number == message.order:
            return (self._hold if message.flags & EXCHANGED else self._arrive)(worker, order, message)
        if message.kind == BROKEN:
            self._gathering.broken(worker, message.order)
            return None
        if message.kind == LOST:
            return self._pool.lose(worker)
        if message.order < 0:  # of an evaluation that is over, or of nothing that the method waits for
            return None
        if message.kind == READY:
            self._ready(worker, message.flags)
        elif worker not in self._pool.staying:  # what it was doing is counted as lost
            return None
        elif worker in self._orders.probes:
            return self._probed(worker, message)
        elif message.kind == FAILED:
            return self._failures.fail(worker, message)
        else:
            self._account_stopped(worker, message)
        return None

    def _ready(self, worker: int, flags: int) -> None:
        self._pool.setting_up.discard(worker)
        if not flags & REACHABLE:
            self._pool.unreachable.append(worker)
        self._pool.draws_globally |= bool(flags & GLOBAL_RANDOM)
        if flags & SHARED and self._pool.connections.shared is not None:
            self._orders.sharing.add(worker)
        if flags & NODE_MEMORY:
            rank = self._pool.connections.rank[worker]
            self._pool.sharing_nodes[rank] = self._pool.connections.ranks[rank].host

    def _hold(self, worker: int, order: Order, message: Message) -> Arrival | Lost | None:
        """Hold back an arrival until the sum is in; then book all, of which the last one has the sum."""
        if order.route is None:  # the exchange was given up, so its result will come by the star
            return None
        message = message._replace(payload=order.x)  # which stands for the result: like it, and finite
        if not 0.0 <= math.fsum(message.seconds) <= time.perf_counter() - order.sent + self.slack:
            return self._arrive(worker, order, message)
        self._gathering.hold(worker, message)
        if (complete := self._gathering.complete()) is None:
            return None
        total, reports = complete
        for each, (report, came) in reports.items():
            arrival = self._arrive(each, self._orders.running[each], report, came)
            assert isinstance(arrival, Arrival)
            self._pool.arrived.append(arrival._replace(result=total if each == worker else None))
        return None

    def _result_of(self, order: Order, message: Message) -> Array:
        """Return the result of an order: from shared memory, or as it was sent."""
        if order.result is not None:
            return order.result
        if not self._results:
            return message.payload
        return self._results.unpack(message.payload, self._pool.connections.channel.buffers.take())

    def drop_reports(self) -> None:
        """Book as stopped what was held back: nobody will use it."""
        for worker, report in self._gathering.unused().items():
            self._ledger.stop(worker, report.tasks, plausible_seconds(report))

    def _arrive(
        self, worker: int, order: Order, message: Message, now: float | None = None
    ) -> Arrival | Lost | None:
        """Book the results of a running order, which came now."""
        now, reported = now or order.came or time.perf_counter(), message.seconds
        seconds = math.fsum(reported)
        turnaround, longest = now - order.latest, now - order.sent + self.slack
        result = self._result_of(order, message)
        if (
            not 0.0 <= seconds <= longest
            or min(reported) < 0.0
            or self._computes
            or (result.nbytes <= INLINE and not surely_finite(result))  # large ones are checked by workers
        ):
            try:
                result = received(worker, result, reported, order.x, f"round {order.round}", longest)
            except BadResultError as error:
                return self._failures.reject(worker, order, message, error)
        order.latest, order.excused = now, self._pool.connections.suspended
        order.left -= message.tasks
        if self._draws is not None:
            self._draws.deliver(worker, message.tasks)
        if not order.left:
            del self._orders.running[worker]
        self._gathering.choice.delivered(seconds, last=not self._orders.running)
        overhead = max(turnaround - seconds, 0.0)
        self._ledger.deliver(worker, reported, seconds, overhead)
        return Arrival(worker, result, reported, overhead)

    def arrive_all(self, batch: Batch) -> Arrivals | None:
        """Book the results of a batch of orders; None if they must be checked one by one."""
        if (arrivals := batch.arrivals()) is not None:
            self._orders.batch = None
            self._ledger.deliver_all(arrivals.workers, arrivals.seconds, arrivals.spent, arrivals.overheads)
        return arrivals

    def _account_stopped(self, worker: int, message: Message) -> None:
        """Book what a worker did for an order that was stopped."""
        seconds = plausible_seconds(message)
        self._ledger.stop(worker, message.tasks, seconds)
        self._orders.account_unused(worker, seconds)
        if message.kind == STOPPED:
            self._orders.confirm_stop(worker)

    def _probed(self, worker: int, message: Message) -> Lost | Back | None:
        """Book the task that a worker on probation was tried with."""
        order, seconds = self._orders.probes.pop(worker), plausible_seconds(message)
        self._ledger.stop(worker, message.tasks, seconds)
        if message.kind == FAILED:
            return self._failures.report(worker, message, order.round)
        try:
            result = self._result_of(order, message)
            received(worker, result, message.seconds, order.x, f"round {order.round}", math.inf)
        except BadResultError as error:
            return self._failures.judge(worker, message.tasks, error, order.round)
        return self._pool.health.answered(worker, seconds)
