"""A worker's side of an exchange: x comes from the neighbour before it, the sum goes to the one after it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.channel import ARRIVAL, BROKEN, EXCHANGED, REPLICATED, STOPPED, Message
from mpi_ata.clusters.exchange.chain import Chain
from mpi_ata.clusters.exchange.links import LinkBrokenError, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.replica import Copy
from mpi_ata.clusters.exchange.route import unpacked
from mpi_ata.clusters.exchange.sharing import SharingChain
from mpi_ata.updates import Update


class Passing:
    """Takes part in one exchange after another.

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
        update: Update | None = None,
        memory: NodeMemory | None = None,
    ) -> None:
        self._links, self._rank, self._memory = links, rank, memory
        self._send, self._poll_stop, self._wait = send, poll_stop, wait
        self._chain: Chain | SharingChain | None = None  # where the present order travels by one
        self.copy = Copy(update)  # of x, where workers have it
        self._round = 0
        self._order = 0
        self._fallback: Message | None = None  # what the manager sent when it gave the exchange up
        self._delivered: dict[str, Any] = {}  # what it may still ask for

    def begin(self, order: Message) -> None:
        """Begin with an order; nothing of the one before it will be asked for."""
        self._order, self._fallback, self._delivered = order.order, None, {}
        self._chain, self._round = None, order.round
        if order.flags & EXCHANGED and self._links is not None:
            kind = SharingChain if order.flags & REPLICATED else Chain
            self._chain = kind(self._links, unpacked(order.payload), self._rank, self._memory)

    @property
    def shares_memory(self) -> bool:
        """Whether this worker shares memory with others on its node."""
        return self._memory is not None and self._memory.usable

    @property
    def active(self) -> bool:
        """Whether x and the result of the present order travel by an exchange."""
        return self._chain is not None and self._fallback is None

    def point(self, x: Array) -> Array:
        """Return x, received in this array; by the star, if the exchange breaks."""
        try:
            x = self._received(x)
        except LinkBrokenError:
            self._give_up()
        return x if self._fallback is None else self._fallback.payload

    def _received(self, x: Array) -> Array:
        """Return x, received in this array; or one's own copy, where workers have it."""
        before = self._round - 1
        if isinstance(self._chain, SharingChain):
            copy = self._chain.pass_copy(lambda: self.copy.packed(before), self._look)
            if copy is not None:
                self.copy.take(copy)
            return self.copy.at(before)
        assert self._chain is not None
        self._chain.pass_point(x, self._look)
        return x

    def deliver(self, seconds: list[float], total: Array) -> None:
        """Report the seconds of an order's tasks, and add its result to the sum."""
        content = {"tasks": len(seconds), "seconds": list(seconds)}
        self._send(ARRIVAL, self._order, flags=EXCHANGED, **content)
        try:
            self._add(total)
            self._delivered = content | {"payload": total}
        except LinkBrokenError:
            if self._give_up():
                self._send(STOPPED, self._order, seconds=[0.0])  # all of it is in the report
            else:
                self._send(ARRIVAL, self._order, payload=total, **content)

    def _add(self, total: Array) -> None:
        """Add an order's result to the sum; where workers have x, keep the sum for the next step."""
        if isinstance(self._chain, SharingChain):
            everything = np.empty(total.shape, total.dtype)  # in C order, which a gradient may not be
            self._chain.share_sum(total, everything, self._look)
            self.copy.keep(self._round, self._chain.route.budget, everything)
        elif self._chain is not None:
            self._chain.pass_sum(total, self._look)

    def fall_back(self, message: Message, order: int) -> None:
        """Go by the star in this order, or deliver the result of the one before once more."""
        if message.order == order:
            self._fallback = message
        elif message.order == self._order and self._delivered:
            self._send(ARRIVAL, message.order, **self._delivered)
            self._delivered = {}

    def _look(self, silent: float) -> None:
        """Raise LinkBrokenError if the manager has stopped this order or given the exchange up."""
        if self._poll_stop() or self._fallback is not None:
            raise LinkBrokenError

    def _give_up(self) -> bool:
        """Leave the exchange, wait for what the manager decides, and return whether the order is stopped."""
        assert self._chain is not None
        self._chain.leave()
        stopped = self._poll_stop()
        if not stopped and self._fallback is None:
            self._send(BROKEN, self._order)
        while not stopped and self._fallback is None:
            stopped = self._wait()
        return stopped

    def close(self) -> None:
        """Close all connections."""
        if self._links is not None:
            self._links.close()
        if self._memory is not None:
            self._memory.close()
