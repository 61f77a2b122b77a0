"""A chain: manager -> first worker -> ... -> last worker -> manager, through which x and the sum are passed.

Both travel in pieces, which each worker passes on as soon as it has them.  So the manager's network card
carries x once and the sum once, those of workers twice as much, however many workers there are.  The
sum is added up on the way, in the order of the workers: the same order, hence the same numbers, as in a star.
Neighbours on one node that share memory are one link of the chain.
"""

from collections.abc import Iterator

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.node import Follower, Leader
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.pieces import as_bytes, parts, pieces
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.layout import MANAGER


def send_point(links: Links, route: Route, x: Array, idle: Idle) -> None:
    """Send x from the manager into the chain."""
    links.renew(route.generation)
    links.send(route.leaders[0], as_bytes(x), idle)


def receive_sum(links: Links, route: Route, total: Array, idle: Idle) -> None:
    """Receive the sum at the manager."""
    links.receive(route.leaders[-1], as_bytes(total), idle)


def seat(links: Links, route: Route, rank: int, memory: NodeMemory | None) -> Leader | Follower:
    """Return a worker's role on its node."""
    node = route.node_of(rank)
    if rank == node[0]:
        return Leader(links, memory, rank, node[1:])
    assert memory is not None  # the manager makes followers only of workers that have reported it
    return Follower(links, memory, rank, node)


def sums_so_far(links: Links, before: int | None, own: Array, idle: Idle) -> Iterator[Array]:
    """Yield the pieces of the sum so far: a rank's own results, added to what comes from the one before."""
    for part in parts(own):
        if before is None:
            yield part
            continue
        sum_so_far = np.empty_like(part)
        links.receive(before, as_bytes(sum_so_far), idle)
        sum_so_far += part
        yield sum_so_far


class Chain:
    """A worker's place in a chain, for one round."""

    def __init__(self, links: Links, route: Route, rank: int, memory: NodeMemory | None = None) -> None:
        self._links = links
        links.renew(route.generation)
        self._seat = seat(links, route, rank, memory)
        leaders = route.leaders
        place = leaders.index(route.node_of(rank)[0])
        self._before = leaders[place - 1] if place else None
        self._after = leaders[place + 1] if place + 1 < len(leaders) else MANAGER

    def pass_point(self, x: Array, idle: Idle) -> None:
        """Receive x, and pass it on."""
        if isinstance(self._seat, Follower):
            self._seat.take(x, idle)
            return
        self._links.connect(self._after)  # so that the neighbour notices if this rank leaves
        shared = self._seat.shared(x)
        for piece in pieces(shared):
            self._links.receive(MANAGER if self._before is None else self._before, piece, idle)
            if self._after != MANAGER:
                self._links.send(self._after, piece, idle)
        self._seat.announce(idle)
        if shared is not x:
            np.copyto(x, shared)

    def pass_sum(self, own: Array, idle: Idle) -> None:
        """Add one's own results to the sum that is passed on."""
        if isinstance(self._seat, Follower):
            self._seat.add(own, idle)
            return
        for piece in self._seat.added(sums_so_far(self._links, self._before, own, idle), idle):
            self._links.send(self._after, as_bytes(piece), idle)

    def leave(self) -> None:
        """Close all connections: the neighbours notice it at once."""
        self._links.disconnect()
