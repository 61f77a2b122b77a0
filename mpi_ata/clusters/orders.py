"""The orders of real workers: those that run, those being stopped, and trial tasks on probation."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.batch import Batch
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import EMPTY, EXCHANGED, ORDER, REPLICATED, STOP, TOGETHER, Payload, is_short
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.clusters.wire import Wire


@dataclass
class Order:
    """What a worker was ordered to do, or will be as soon as it has stopped its previous order."""

    number: int
    x: Array
    round: int
    count: int
    together: bool
    left: int
    route: Route | None = None  # of the exchange by which x and the result travel
    # What most orders never change is not set for each of them.
    sent: float = field(default=math.inf, init=False)
    latest: float = field(default=math.inf, init=False)  # when it was sent, or its latest arrival came
    excused: float = field(default=0.0, init=False)  # seconds of suspension before that
    stopped: float = field(default=math.inf, init=False)  # when it was told to stop
    unused: float = field(default=0.0, init=False)  # seconds reported since then
    noted: float = field(default=0.0, init=False)  # seconds since then that are in overruns()
    hung: bool = field(default=False, init=False)  # whether its worker was found to hang since then
    came: float = field(default=0.0, init=False)  # when its result arrived, if that has not been handled yet
    reported: bool = field(default=False, init=False)  # whether its tasks are done, the result on its way
    result: Array | None = field(default=None, init=False)  # where it will be, if in shared memory


class Orders:
    """The orders of all workers: each has at most one that runs, after one that is being stopped."""

    def __init__(self, connections: Connections, draws: Draws | None, points: Wire) -> None:
        self._running: dict[int, Order] = {}  # by worker
        self.batch: Batch | None = None  # in place of single orders, until anything unexpected happens
        self.stopping: dict[int, Order] = {}  # whose stop is not yet confirmed
        self.probes: dict[int, Order] = {}  # single tasks of workers on probation
        self.sharing: set[int] = set()  # workers that have opened the shared memory
        self._overruns: dict[int, float] = {}  # of confirmed stops, since overruns() was last called
        self._connections, self._draws, self._points = connections, draws, points
        self._numbers = 0

    @property
    def running(self) -> dict[int, Order]:
        """The order that each worker holds, by worker; a batch becomes single orders first."""
        self.split_batch()
        return self._running

    def start_batch(self, workers: IntArray, x: Array, round: int, counts: list[int], slack: float) -> bool:
        """Give each of these workers an order, all as one batch, and return whether that is possible.

        The times that they report may be too long by up to `slack` seconds.
        """
        if self._running or self.batch is not None or self.stopping:
            return False
        names, connections = workers.tolist(), self._connections
        if not names or len(set(names)) < len(names) or not is_short(x.nbytes, max(counts)):
            return False
        ranks, first = [connections.rank[worker] for worker in names], self._numbers + 1
        self._numbers += len(names)
        self.batch = Batch(workers, ranks, x, first, round, counts, connections.suspended, slack)
        self.batch.send(connections.channel)
        connections.wake(names)
        return True

    def split_batch(self) -> None:
        """Turn the batch, if there is one, into single orders, and its results so far into messages."""
        if (batch := self.batch) is None:
            return
        self.batch = None
        for j, (worker, count) in enumerate(zip(batch.workers.tolist(), batch.counts, strict=True)):
            order = Order(batch.first + j, batch.x, batch.round, count, True, count)
            order.sent = order.latest = batch.sent
            order.excused, order.came = batch.excused, batch.came.get(j, 0.0)
            self._running[worker] = order
        self._connections.postponed += batch.messages()

    def start(
        self,
        workers: Iterable[int],
        x: Array,
        round: int,
        counts: Iterable[int],
        together: bool,
        route: Route | None = None,
    ) -> None:
        """Give each of these workers an order; it is sent as soon as the previous one is stopped."""
        running, stopping, number = self.running, self.stopping, self._numbers
        for worker, count in zip(workers, counts, strict=False):
            if worker in running:
                raise RuntimeError("a worker holds one order at a time; stop it first")
            self._numbers = number = number + 1
            running[worker] = order = Order(number, x, round, count, together, count, route)
            if worker not in stopping:
                self._send(worker, order)

    def probe(self, worker: int, x: Array, round: int) -> None:
        """Give an idle worker a single task, whose result will be dropped."""
        self._numbers += 1
        self.probes[worker] = order = Order(self._numbers, x, round, 1, True, 1)
        self._send(worker, order)

    def _send(self, worker: int, order: Order) -> None:
        """Send an order; point and result go through shared memory where possible, otherwise by message."""
        x_slot, result_slot, connections, route = NOWHERE, NOWHERE, self._connections, order.route
        shared = connections.shared
        draws: Sequence[float] = ()
        if route is None and shared is not None and worker in self.sharing:
            order.x = shared.put(order.x)
            order.result = shared.free() if order.together or order.count == 1 else None
            x_slot, result_slot = shared.number_of(order.x), shared.number_of(order.result)
        if self._draws is not None and worker in self.running:
            draws = self._draws.of(worker)
        payload: Payload = self._points.packed_point(order.x) if x_slot == NOWHERE else EMPTY
        to, flags = connections.rank[worker], TOGETHER if order.together else 0
        if route is not None:
            payload = route.packed()
            flags |= EXCHANGED | (REPLICATED if route.budget else 0)
        connections.channel.send(
            to, ORDER, order.number, order.round, order.count, flags, draws, payload, x_slot, result_slot
        )
        connections.ring[worker]()
        order.sent = order.latest = time.perf_counter()
        order.excused = connections.suspended

    def withdraw(self, worker: int) -> float:
        """Withdraw a worker's order, and return the seconds it has spent since its latest arrival.

        What it still delivers of the order is dropped.  The order is remembered until the worker confirms
        that it has stopped: until then it may write into shared memory.
        """
        order = self.running.pop(worker, None)
        self.give_back_draws(worker)
        if order is None or not order.left or order.sent == math.inf:
            return 0.0
        self._connections.send(worker, STOP, order.number)
        self.stopping[worker] = order
        order.stopped = time.perf_counter()
        return order.stopped - order.latest

    def withdraw_all(self, workers: IntArray) -> Array:
        """Withdraw the orders of these workers, and return the seconds that each has spent on its own."""
        return np.array([self.withdraw(worker) for worker in workers.tolist()], np.float64)

    def account_unused(self, worker: int, seconds: float) -> None:
        """Note seconds that a worker reports of an order that was stopped."""
        if worker in self.stopping:
            self.stopping[worker].unused += seconds

    def confirm_stop(self, worker: int) -> None:
        """Note that a worker has stopped, and send its next order, if it has one."""
        if (order := self.stopping.pop(worker, None)) is None:
            return
        # By what the worker reports: the manager may have been busy when the confirmation came.
        overrun = 0.0 if order.hung else max(order.unused - (order.stopped - order.latest), 0.0)
        self._overruns[worker] = self._overruns.get(worker, 0.0) + overrun - order.noted
        if worker in self.running:
            self._send(worker, self.running[worker])

    def overruns(self, hangs: Callable[[int, float], bool]) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call.

        They are corrected, perhaps by a negative number, when the worker confirms that it has stopped, and
        when `hangs(worker, seconds)` says that it hangs: that is no property of its tasks.
        """
        found, self._overruns, now = self._overruns, {}, time.perf_counter()
        for worker, order in self.stopping.items():
            spent = now - order.stopped
            order.hung = order.hung or hangs(worker, spent)
            spent = 0.0 if order.hung else spent
            found[worker] = found.get(worker, 0.0) + spent - order.noted
            order.noted = spent
        return found

    def give_back_draws(self, worker: int) -> None:
        """Let others have the draws of tasks that a worker will not deliver."""
        if self._draws is not None:
            self._draws.give_back(worker)

    def is_busy(self, worker: int) -> bool:
        """Return whether a worker has something to do."""
        return any(worker in orders for orders in (self.running, self.stopping, self.probes))

    def drop(self, worker: int) -> bool:
        """Forget all orders of a worker, and return whether it had any."""
        self.give_back_draws(worker)
        held = [orders.pop(worker, None) for orders in (self.running, self.stopping, self.probes)]
        return any(order is not None for order in held)

    def silent(self, now: float) -> Iterator[tuple[int, Order, float]]:
        """Yield each worker with a running order, its current order, and the seconds it has been silent."""
        for worker, queued in list(self.running.items()):
            order = self.stopping.get(worker, queued)
            if order.reported:
                continue
            yield worker, order, now - order.latest - (self._connections.suspended - order.excused)
