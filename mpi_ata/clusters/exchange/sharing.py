"""A chain whose workers have x: they share the sum of their results, and the manager sees none of it.

The sum is added up from the first worker to the last, in the order of the workers as everywhere, and then
passed on from the last to the first and so forth.  The one that gets it last notifies the manager.
Neighbours that share memory are one link of the chain, and their leader notifies the manager for all of them.
Where each worker has a node of its own, all send to each other directly, which is faster.
"""

from collections.abc import Callable

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.chain import seat, sums_so_far
from mpi_ata.clusters.exchange.direct import share_directly
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.node import Follower, Leader
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.pieces import as_bytes, parts, pieces
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.layout import MANAGER
from mpi_ata.packing import Packed


def send_copy(links: Links, route: Route, copy: Packed, idle: Idle) -> None:
    """Send x and the state of the update from here to the workers that do not have it."""
    links.renew(route.generation)
    for data in (np.array([copy.size]), copy):
        links.send(route.stale[0], as_bytes(data), idle)


def receive_tokens(links: Links, route: Route, idle: Idle) -> None:
    """Wait at the manager until all workers have the sum."""
    for rank in last_to_know(route):
        links.receive(rank, memoryview(bytearray(1)), idle)


def last_to_know(route: Route) -> tuple[int, ...]:
    """Return the worker that gets the sum last; all leaders if it is not known which is last."""
    if route.direct or route.followers:
        return route.leaders
    return route.ranks[max(len(route.ranks) - 2, 0) :][:1]


class SharingChain:
    """A worker's place in such a chain, for one round."""

    def __init__(self, links: Links, route: Route, rank: int, memory: NodeMemory | None = None) -> None:
        self._links, self.route, self._rank = links, route, rank
        links.renew(route.generation)
        self._seat = seat(links, route, rank, memory)

    def pass_copy(self, own: Callable[[], Packed], idle: Idle) -> Packed | None:
        """Send one's own copy of x to those that do not have it, or receive one; None: nothing came."""
        if self._rank in last_to_know(self.route):
            self._links.connect(MANAGER)  # which so notices if this rank leaves
        if self._rank in self.route.stale:
            return self._receive_copy(idle)
        if self.route.stale and self._rank == self.route.source:
            send_copy(self._links, self.route, own(), idle)
        return None

    def _receive_copy(self, idle: Idle) -> Packed:
        """Receive a copy of x, and pass it on."""
        way = (self.route.source, *self.route.stale, None)
        place = way.index(self._rank, 1)
        size = np.zeros(1, np.int64)
        self._pass(way[place - 1], way[place + 1], as_bytes(size), idle)
        copy = np.empty(size.item(), np.uint8)
        for piece in pieces(copy):
            self._pass(way[place - 1], way[place + 1], piece, idle)
        return copy

    def _pass(self, before: int | None, after: int | None, piece: memoryview, idle: Idle) -> None:
        """Receive a piece and pass it on, where there is a neighbour before and after."""
        if before is not None:
            self._links.receive(before, piece, idle)
        if after is not None:
            self._links.send(after, piece, idle)

    def share_sum(self, own: Array, total: Array, idle: Idle) -> None:
        """Put the sum of all workers' results into `total`."""
        if isinstance(self._seat, Follower):
            self._seat.add(own, idle)
            self._seat.take(total, idle)
            self._seat.confirm(idle)
        elif self.route.direct:
            share_directly(self._links, self.route.ranks, self._rank, own, total, idle)
        else:
            self._share_by_chain(self._seat, own, total, idle)
        if self._rank in last_to_know(self.route):
            self._links.send(MANAGER, memoryview(b"!"), idle)

    def _share_by_chain(self, leader: Leader, own: Array, total: Array, idle: Idle) -> None:
        links = self.route.leaders
        place, last = links.index(self._rank), len(links) - 1
        before, after = (links[place - 1] if place else None), (links[place + 1] if place < last else None)
        sums = leader.added(sums_so_far(self._links, before, own, idle), idle)
        for part, summed in zip(parts(total), sums, strict=True):
            np.copyto(part, summed)
            self._pass(None, after, as_bytes(part), idle)
        if last:
            self._spread(total, place, last, idle)
        leader.give(total, idle)

    def _spread(self, total: Array, place: int, last: int, idle: Idle) -> None:
        """Pass the sum on, from the last link to the first, the second, and so forth."""
        links = self.route.leaders
        before = None if place == last else links[place - 1]
        after = links[0] if place == last else links[place + 1] if place + 1 < last else None
        for piece in pieces(total):
            self._pass(before, after, piece, idle)

    def leave(self) -> None:
        """Close all connections: the neighbours notice it at once."""
        self._links.disconnect()
