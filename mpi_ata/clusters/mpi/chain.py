"""A chain: manager -> first worker -> ... -> last worker -> manager, through which x and the sum are passed.

Both travel in pieces, which each worker passes on as soon as it has them.  So the manager's network card
carries x once and the sum once, those of workers twice as much, however many workers there are.  The
sum is added up on the way, in the order of the workers: the same order, hence the same numbers, as by the
star, where each worker's x and results pass through the manager's card.

Workers report their seconds as soon as their tasks are done; the manager holds these reports back until the
sum is in.  If a worker is lost or a connection breaks before that, all others deliver by the star what
they have, so that such a round ends as any other with a loss.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.mpi.channel import (
    ARRIVAL,
    BROKEN,
    EXCHANGED,
    FALLBACK,
    INLINE,
    STOPPED,
    Message,
    Payload,
)
from mpi_ata.clusters.mpi.links import Idle, LinkBrokenError, Links
from mpi_ata.clusters.network import PIECE_BYTES
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.layout import MANAGER

if TYPE_CHECKING:
    from mpi_ata.clusters.mpi.engine import Order, Ranks

log = logging.getLogger("mpi_ata")
LEAST_BYTES = 1 << 16  # of x, from which a chain can be better
TRIALS = 3  # rounds of each way that "auto" measures
STALL_SECONDS = 10.0  # without a byte, after which a round by the chain is given up
ATTEMPTS = 3  # rounds that may break, with no worker lost, before all go by the star


def open_links(exchange: str, template: Array, hosts: Sequence[str]) -> Links | None:
    """Return what a chain among ranks on these hosts needs; None if all goes by the star."""
    possible = template.nbytes > INLINE if exchange == "chain" else _may_pay(exchange, template.nbytes, hosts)
    return Links(alone=len(set(hosts)) == 1) if possible else None


def _may_pay(exchange: str, size: int, hosts: Sequence[str]) -> bool:
    """Return whether a chain may be better, with the manager on the first of these hosts."""
    return exchange == "auto" and size >= LEAST_BYTES and sum(host != hosts[0] for host in hosts) >= 2


class Route(NamedTuple):
    """The ranks of the workers in a chain, in order; connections of other generations are closed first."""

    generation: int
    ranks: tuple[int, ...]

    def packed(self) -> IntArray:
        """Return it as it is sent."""
        return np.array([self.generation, *self.ranks], np.int64)


def unpacked(data: Payload) -> Route:
    """Return the route in a message."""
    generation, *ranks = np.ascontiguousarray(data).reshape(-1).view(np.int64).tolist()
    return Route(generation, tuple(ranks))


class Chain:
    """The place of a rank in a chain, for one round."""

    def __init__(self, links: Links, route: Route, rank: int) -> None:
        self._links = links
        links.renew(route.generation)
        ring = (MANAGER, *route.ranks)
        place = ring.index(rank)
        self._before, self._after = ring[place - 1], ring[(place + 1) % len(ring)]

    def send_point(self, x: Array, idle: Idle) -> None:
        """Send x from the manager into the chain."""
        self._links.send(self._after, _as_bytes(x), idle)

    def pass_point(self, x: Array, idle: Idle) -> None:
        """Receive x at a worker, and pass it on."""
        self._links.connect(self._after)  # so that the neighbour notices if this rank leaves
        data = _as_bytes(x)
        for begin in range(0, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            self._links.receive(self._before, piece, idle)
            if self._after != MANAGER:
                self._links.send(self._after, piece, idle)

    def pass_sum(self, own: Array, idle: Idle) -> None:
        """Add a worker's own results to the sum that is passed on."""
        numbers = np.ascontiguousarray(own).reshape(-1)
        count = PIECE_BYTES // numbers.itemsize
        for begin in range(0, numbers.size, count):
            piece = numbers[begin : begin + count]
            if self._before != MANAGER:
                sum_so_far = np.empty_like(piece)
                self._links.receive(self._before, _as_bytes(sum_so_far), idle)
                sum_so_far += piece
                piece = sum_so_far
            self._links.send(self._after, _as_bytes(piece), idle)

    def receive_sum(self, total: Array, idle: Idle) -> None:
        """Receive the sum at the manager."""
        self._links.receive(self._before, _as_bytes(total), idle)

    def leave(self) -> None:
        """Close all connections: the neighbours notice it at once."""
        self._links.disconnect()


def _as_bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Choice:
    """Decides by which way a round goes; "auto" measures both in the first rounds where both make sense.

    Both give the same numbers, bit for bit.
    """

    def __init__(self, exchange: str, host: str, size: int) -> None:
        self._exchange, self._host, self._size = exchange, host, size
        self._rounds = 0  # that were measured, or are being measured
        self._costs = {"chain": math.inf, "star": math.inf}  # least seconds beside the longest tasks
        self._began = self._longest = -1.0  # of the round that is being measured

    def chain(self, hosts: Sequence[str]) -> bool:
        """Return whether a round among workers on these hosts uses the chain."""
        self._began = -1.0
        if self._exchange != "auto":
            return self._exchange == "chain"
        if not _may_pay("auto", self._size, [self._host, *hosts]):
            return False
        if self._rounds < 2 * TRIALS:
            self._rounds += 1
            self._began, self._longest = time.perf_counter(), 0.0
        return self._way() == "chain"

    @property
    def is_star(self) -> bool:
        """Whether it was found that the star is better."""
        return self._rounds == 2 * TRIALS and self._began < 0 and self._way() == "star"

    def _way(self) -> str:
        if self._rounds <= TRIALS:
            return "chain"
        trying = self._began >= 0
        return "star" if trying else min(self._costs, key=lambda way: self._costs[way])

    def delivered(self, seconds: float, last: bool) -> None:
        """Note how long the tasks of an order took; `last` if no other order is running."""
        if self._began < 0:
            return
        self._longest = max(self._longest, seconds)
        if last:
            cost, way = time.perf_counter() - self._began - self._longest, self._way()
            self._costs[way] = min(self._costs[way], cost)
            self._began = -1.0
            if self._rounds == 2 * TRIALS:
                costs = {way: f"{seconds:.3g} s" for way, seconds in self._costs.items()}
                log.info("x and results go by the %s: measured per round %s", self._way(), costs)


class Report(NamedTuple):
    """What a worker has reported while its results are on their way."""

    message: Message
    came: float  # when


class Gathering:
    """The manager's side: at most one chain at a time, among the workers of an order."""

    def __init__(self, ranks: "Ranks", choice: Choice, grace_expired: Callable[[], bool]) -> None:
        self._ranks, self._grace_expired = ranks, grace_expired
        self.choice = choice
        self._generation = self._broken = 0
        self._chain: Chain | None = None
        self._order: Order | None = None
        self._members: list[int] = []  # the workers of that order
        self.reports: dict[int, Report] = {}  # by worker, held back until the sum is in

    def route(self, workers: list[int]) -> Route | None:
        """Return how a round's x and results travel among these workers; None: by the star."""
        ranks = self._ranks
        if self._broken >= ATTEMPTS or self.choice.is_star:
            ranks.close_links()
        if ranks.links is None:
            return None
        if any(worker in ranks.stopping for worker in workers):  # they cannot all take part at once
            return None
        members = sorted(ranks.rank[worker] for worker in workers)
        chain = self.choice.chain([ranks.ranks[rank].host for rank in members])
        return Route(self._generation, tuple(members)) if chain else None

    def begin(self, workers: list[int], route: Route, order: "Order") -> None:
        """Send x to workers whose orders are on their way."""
        assert self._ranks.links is not None
        self._order, self._members, self.reports = order, workers, {}
        self._chain = Chain(self._ranks.links, route, MANAGER)
        try:
            self._send_orders()
            self._chain.send_point(order.x, self._look)
        except LinkBrokenError as error:
            self.dissolve(str(error))

    def _send_orders(self) -> None:
        """Wait until all orders are sent: MPI sends nothing while x is being passed on."""
        began = time.perf_counter()
        while self._ranks.channel.sending():
            self._look(time.perf_counter() - began)
            os.sched_yield()

    def complete(self) -> tuple[Array, dict[int, Report]] | None:
        """Return the sum and the reports of all members, if all have reported and nothing breaks now."""
        if self._chain is None or len(self.reports) < len(self._members):
            return None
        total = self._ranks.channel.buffers[0].take()  # a chain has the ranks for itself
        try:
            self._chain.receive_sum(total, self._look)
        except LinkBrokenError as error:
            self.dissolve(str(error))
            return None
        self._broken = 0
        return total, self.end()

    def broken(self, worker: int) -> None:
        """Give up the chain to which a worker's order belongs, since it cannot complete it."""
        if worker in self._members:
            self.dissolve(f"worker {worker} lost a connection")

    def _look(self, silent: float) -> None:
        """Raise LinkBrokenError if a member has died, or nothing has moved for long."""
        if self._grace_expired():
            raise GraceExpired
        if silent > STALL_SECONDS:
            raise LinkBrokenError(f"nothing moved for {STALL_SECONDS:g} s")
        dead = self._ranks.find_dead()
        if any(self._ranks.rank[worker] in dead for worker in self._members):
            raise LinkBrokenError

    def check(self) -> None:
        """Give up the chain if one of its orders has ended otherwise: its worker is lost, say."""
        orders = self._ranks.orders
        if self._members and any(orders[worker] is not self._order for worker in self._members):
            self.dissolve()

    def end(self) -> dict[int, Report]:
        """End the chain, and return the reports of its members."""
        reports, self._members, self.reports = self.reports, [], {}
        return reports

    def dissolve(self, why: str = "") -> None:
        """Let all members deliver by the star what they have, or will have."""
        ranks, order, members = self._ranks, self._order, self._members
        self.end()
        if order is None or not members:
            return
        self._generation += 1
        if why:
            self._note_broken(why)
        order.route, now = None, ranks.begin_waiting()  # what the chain took counts for nobody
        for worker in members:
            if ranks.orders[worker] is order:
                ranks.latest[worker], ranks.excused[worker] = now, ranks.suspended
                ranks.channel.send(ranks.rank[worker], FALLBACK, order.number, payload=order.x)
                ranks.ring[worker]()

    def _note_broken(self, why: str) -> None:
        self._broken += 1
        log.debug("the chain has broken: %s", why)
        if self._broken == ATTEMPTS:
            log.warning("the chain has broken %s times (%s): x and results go by the star", ATTEMPTS, why)


class Passing:
    """The worker's side: takes part in one chain after another.

    `poll_stop` reads a message, if there is one, and returns whether the order is to be stopped; `wait` does
    so when one comes.
    """

    def __init__(
        self,
        links: Links | None,
        rank: int,
        send: Callable[..., None],
        poll_stop: Callable[[], bool],
        wait: Callable[[], bool],
    ) -> None:
        self._links, self._rank = links, rank
        self._send, self._poll_stop, self._wait = send, poll_stop, wait
        self._chain: Chain | None = None  # where the present order travels by one
        self._order = 0
        self._fallback: Message | None = None  # what the manager sent when it gave the chain up
        self._delivered: dict[str, Any] = {}  # what it may still ask for

    def begin(self, order: Message) -> None:
        """Begin with an order; nothing of the one before it will be asked for."""
        self._order, self._fallback, self._delivered = order.order, None, {}
        self._chain = None
        if order.flags & EXCHANGED and self._links is not None:
            self._chain = Chain(self._links, unpacked(order.payload), self._rank)

    @property
    def active(self) -> bool:
        """Whether x and the result of the present order travel by the chain."""
        return self._chain is not None and self._fallback is None

    def point(self, x: Array) -> Array:
        """Return x, received in this array; by the star, if the chain breaks."""
        assert self._chain is not None
        try:
            self._chain.pass_point(x, self._look)
        except LinkBrokenError:
            self._give_up(self._chain)
        return x if self._fallback is None else self._fallback.payload

    def deliver(self, seconds: list[float], total: Array) -> None:
        """Report the seconds of an order's tasks, and add its result to the sum."""
        assert self._chain is not None
        content = {"tasks": len(seconds), "seconds": list(seconds)}
        self._send(ARRIVAL, self._order, flags=EXCHANGED, **content)
        try:
            self._chain.pass_sum(total, self._look)
            self._delivered = content | {"payload": total}
        except LinkBrokenError:
            if self._give_up(self._chain):
                self._send(STOPPED, self._order, seconds=[0.0])  # all of it is in the report
            else:
                self._send(ARRIVAL, self._order, payload=total, **content)

    def fall_back(self, message: Message, order: int) -> None:
        """Go by the star in this order, or deliver the result of the one before once more."""
        if message.order == order:
            self._fallback = message
        elif message.order == self._order and self._delivered:
            self._send(ARRIVAL, message.order, **self._delivered)
            self._delivered = {}

    def _look(self, silent: float) -> None:
        """Raise LinkBrokenError if the manager has stopped this order or given the chain up."""
        if self._poll_stop() or self._fallback is not None:
            raise LinkBrokenError

    def _give_up(self, chain: Chain) -> bool:
        """Leave the chain, wait for what the manager decides, and return whether the order is stopped."""
        chain.leave()
        stopped = self._poll_stop()
        if not stopped and self._fallback is None:
            self._send(BROKEN, self._order)
        while not stopped and self._fallback is None:
            stopped = self._wait()
        return stopped

    def close(self) -> None:
        """Close all connections for good."""
        if self._links is not None:
            self._links.close()
            self._links = None
