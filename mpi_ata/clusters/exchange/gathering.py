"""The manager's side of an exchange: a round whose results come back as one sum.

Workers report their seconds as soon as their tasks are done; the manager holds these reports back until the
sum is in.  If a worker is lost or a connection breaks before that, all others deliver by the star what
they have, so that such a round ends as any other with a loss.
"""

import logging
import os
import time
from typing import NamedTuple

from mpi_ata.arrays import Array
from mpi_ata.clusters.channel import FALLBACK, Message
from mpi_ata.clusters.exchange.chain import receive_sum, send_point
from mpi_ata.clusters.exchange.choice import Choice, use_direct
from mpi_ata.clusters.exchange.links import LinkBrokenError
from mpi_ata.clusters.exchange.replica import Replica
from mpi_ata.clusters.exchange.route import Route, followers_of
from mpi_ata.clusters.exchange.sharing import receive_tokens, send_copy
from mpi_ata.clusters.orders import Order
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.layout import MANAGER

log = logging.getLogger("mpi_ata")
STALL = 10.0  # seconds without a byte after which an exchange is given up
ATTEMPTS = 3  # exchanges that may break, with no worker lost, before there are no more of them


class Report(NamedTuple):
    """What a worker has reported while its results are on their way."""

    message: Message
    came: float  # when


class Gathering:
    """At most one exchange at a time, among the workers of a round."""

    def __init__(self, pool: WorkerPool, choice: Choice) -> None:
        self._pool, self._connections, self._orders = pool, pool.connections, pool.orders
        self.choice = choice
        self._generation = self._broken = 0
        self._members: dict[int, Order] = {}  # by worker
        self._reports: dict[int, Report] = {}
        self._route = Route(0, ())
        self._replica: Replica | None = None  # where workers have x

    def replicated(self, workers: list[int], replica: Replica, budget: int) -> Route | None:
        """Return how workers that have x share their sum, and who sends x to those that do not."""
        if self._connections.links is None or not self._usable(workers):
            return None
        fresh = [worker for worker in workers if worker in replica.fresh]
        if not fresh:
            replica.value()
        stale = [worker for worker in workers if worker not in fresh]
        return self._route_of(workers)._replace(
            budget=budget,
            source=self._connections.rank[fresh[0]] if fresh else MANAGER,
            stale=self._ranks(stale),
            direct=use_direct(self._hosts(workers)),
        )

    def _route_of(self, workers: list[int]) -> Route:
        ranks = self._ranks(workers)
        return Route(self._generation, ranks, followers=followers_of(ranks, self._pool.sharing_nodes))

    def _hosts(self, workers: list[int]) -> list[str]:
        return [self._pool.identities[worker].host for worker in workers]

    def _ranks(self, workers: list[int]) -> tuple[int, ...]:
        return tuple(sorted(self._connections.rank[worker] for worker in workers))

    def _usable(self, workers: list[int]) -> bool:
        """Return whether a chain can be expected to work, and whether all of these can take part at once."""
        return self._broken < ATTEMPTS and not any(worker in self._orders.stopping for worker in workers)

    def route(self, workers: list[int]) -> Route | None:
        """Return how a round's x and results travel among these workers; None: by the star."""
        if self._connections.links is None or not self._usable(workers):
            return None
        if not self.choice.chain(self._hosts(workers)):
            return None
        return self._route_of(workers)

    def begin(self, workers: list[int], route: Route, x: Array | Replica) -> None:
        """Send x to workers whose orders are on their way, if they do not have it."""
        self._members = {worker: self._orders.running[worker] for worker in workers}
        self._reports, self._route = {}, route
        self._replica = x if isinstance(x, Replica) else None
        assert self._connections.links is not None
        try:
            self._send_orders()
            if not isinstance(x, Replica):
                send_point(self._connections.links, route, x, self._look)
            elif route.stale and route.source == MANAGER:
                send_copy(self._connections.links, route, x.packed(), self._look)
            else:
                self._connections.links.renew(route.generation)
        except LinkBrokenError as error:
            self.dissolve(str(error))

    def _send_orders(self) -> None:
        """Wait until all orders are sent: MPI sends nothing while x is being passed on."""
        began = time.perf_counter()
        while self._connections.channel.sending():
            self._look(time.perf_counter() - began)
            os.sched_yield()

    def hold(self, worker: int, message: Message) -> None:
        """Hold back a worker's report until the sum is in."""
        self._reports[worker] = Report(message, time.perf_counter())
        self._members[worker].reported = True

    def complete(self) -> tuple[Array | None, dict[int, Report]] | None:
        """Return the sum and the reports of all members, if all have reported and nothing breaks now.

        Where workers have x there is no sum: they have moved it.
        """
        if len(self._reports) < len(self._members):
            return None
        try:
            total = self._receive_sum()
        except LinkBrokenError as error:
            self.dissolve(str(error))
            return None
        if self._replica is not None:
            (round,) = {order.round for order in self._members.values()}
            self._replica.moved(frozenset(self._members), round)
        reports, self._members, self._reports, self._broken = self._reports, {}, {}, 0
        return total, reports

    def _receive_sum(self) -> Array | None:
        """Receive the sum; where workers have x, the news that all of them have it."""
        assert self._connections.links is not None
        if self._replica is not None:
            receive_tokens(self._connections.links, self._route, self._look)
            return None
        total = self._connections.channel.buffers.take()
        receive_sum(self._connections.links, self._route, total, self._look)
        return total

    def broken(self, worker: int, number: int) -> None:
        """Give up the exchange to which this order belongs, since its worker cannot complete it."""
        if worker in self._members and self._members[worker].number == number:
            self.dissolve(f"worker {worker} lost a connection")

    def _look(self, silent: float) -> None:
        """Raise LinkBrokenError if a member has died, or nothing has moved for long."""
        if self._pool.grace_expired():
            raise GraceExpired
        if silent > STALL:
            raise LinkBrokenError(f"nothing moved for {STALL:g} s")
        dead = self._connections.find_dead()
        if any(self._connections.rank[worker] in dead for worker in self._members):
            raise LinkBrokenError

    def check(self) -> None:
        """End the exchange if one of its orders has ended otherwise: its worker is lost, say."""
        if any(self._orders.running.get(worker) is not order for worker, order in self._members.items()):
            self.dissolve()

    def dissolve(self, why: str = "") -> None:
        """Let all members deliver by the star what they have, or will have."""
        members, self._members, self._reports = self._members, {}, {}
        if not members:
            return
        self._generation += 1
        if why:
            self._note_broken(why)
        if self._replica is not None:
            for order in members.values():
                order.x = self._replica.value()
        now = self._connections.begin_waiting()  # what the exchange took counts for nobody
        for worker, order in members.items():
            if self._orders.running.get(worker) is order:
                order.route, order.reported, order.latest = None, False, now
                order.excused = self._connections.suspended
                to = self._connections.rank[worker]
                self._connections.channel.send(to, FALLBACK, order.number, payload=order.x)
                self._connections.ring[worker]()

    def _note_broken(self, why: str) -> None:
        self._broken += 1
        log.debug("the chain has broken: %s", why)
        if self._broken == ATTEMPTS:
            log.warning("the chain has broken %s times (%s): x and results go by the star", ATTEMPTS, why)

    def unused(self) -> dict[int, Message]:
        """End the exchange for good, and return the reports of members whose results nobody will use."""
        found = {worker: report.message for worker, report in self._reports.items()}
        self._members, self._reports = {}, {}
        return found
