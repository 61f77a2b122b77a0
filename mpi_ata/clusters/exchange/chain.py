"""A chain: manager -> first worker -> ... -> last worker -> manager, through which x and the sum are passed.

Both travel in pieces, which each worker passes on as soon as it has them.  So the manager's network card
carries x once and the sum once, those of workers twice as much, however many workers there are.  The
sum is added up on the way, in the order of the workers: the same order, hence the same numbers, as in a star.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.layout import MANAGER

PIECE = 1 << 16  # bytes: a chain of n workers is filled after n pieces


class Route(NamedTuple):
    """The ranks of the workers in a chain, in order; connections of other generations are closed first."""

    generation: int
    ranks: tuple[int, ...]

    def packed(self) -> IntArray:
        """Return it as it is sent."""
        return np.array([self.generation, *self.ranks], np.int64)


def unpacked(data: Array) -> Route:
    """Return the route in a message."""
    generation, *ranks = np.ascontiguousarray(data).reshape(-1).view(np.int64).tolist()
    return Route(generation, tuple(ranks))


def send_point(links: Links, route: Route, x: Array, idle: Idle) -> None:
    """Send x from the manager into the chain."""
    links.renew(route.generation)
    links.send(route.ranks[0], _bytes(x), idle)


def receive_sum(links: Links, route: Route, total: Array, idle: Idle) -> None:
    """Receive the sum at the manager."""
    links.receive(route.ranks[-1], _bytes(total), idle)


class Chain:
    """A worker's place in a chain, for one round."""

    def __init__(self, links: Links, route: Route, rank: int) -> None:
        self._links = links
        links.renew(route.generation)
        ring = (MANAGER, *route.ranks, MANAGER)
        place = ring.index(rank, 1)
        self._before, self._after = ring[place - 1], ring[place + 1]

    def pass_point(self, x: Array, idle: Idle) -> None:
        """Receive x, and pass it on."""
        self._links.connect(self._after)  # so that the neighbour notices if this rank leaves
        for piece in _pieces(x):
            self._links.receive(self._before, piece, idle)
            if self._after != MANAGER:
                self._links.send(self._after, piece, idle)

    def pass_sum(self, own: Array, idle: Idle) -> None:
        """Add one's own results to the sum that is passed on."""
        if self._before == MANAGER:
            self._links.send(self._after, _bytes(own), idle)
            return
        own = np.ascontiguousarray(own).reshape(-1)
        count = PIECE // own.itemsize
        coming = np.empty(min(count, own.size), own.dtype)
        for begin in range(0, own.size, count):
            part = own[begin : begin + count]
            sum_so_far = coming[: part.size]
            self._links.receive(self._before, _bytes(sum_so_far), idle)
            sum_so_far += part
            self._links.send(self._after, _bytes(sum_so_far), idle)

    def leave(self) -> None:
        """Close all connections: the neighbours notice it at once."""
        self._links.disconnect()


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(array: Array) -> Iterator[memoryview]:
    data = _bytes(array)
    for begin in range(0, len(data), PIECE):
        yield data[begin : begin + PIECE]
