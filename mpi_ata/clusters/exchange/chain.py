"""A chain: manager -> first worker -> ... -> last worker -> manager, through which x and the sum are passed.

Both travel in pieces, which each worker passes on as soon as it has them.  So the manager's network card
carries x once and the sum once, those of workers twice as much, however many workers there are.  The
sum is added up on the way, in the order of the workers: the same order, hence the same numbers, as in a star.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.layout import MANAGER

PIECE = 1 << 16  # bytes: a chain of n workers is filled after n pieces


class Route(NamedTuple):
    """The ranks of the workers in a chain, in order; connections of other generations are closed first."""

    generation: int
    ranks: tuple[int, ...]
    budget: int = 0  # where workers have x and share the sum: the number of gradients in it
    source: int = MANAGER  # who sends x to those of them that do not have it
    stale: tuple[int, ...] = ()
    direct: bool = False  # whether they send to each other directly

    def packed(self) -> IntArray:
        """Return it as it is sent."""
        head = self.generation, self.budget, self.source, self.direct, len(self.stale)
        return np.array([*head, *self.stale, *self.ranks], np.int64)


def unpacked(data: Array) -> Route:
    """Return the route in a message."""
    numbers = np.ascontiguousarray(data).reshape(-1).view(np.int64).tolist()
    generation, budget, source, direct, stale, *ranks = numbers
    return Route(generation, tuple(ranks[stale:]), budget, source, tuple(ranks[:stale]), bool(direct))


def send_point(links: Links, route: Route, x: Array, idle: Idle) -> None:
    """Send x from the manager into the chain."""
    links.renew(route.generation)
    links.send(route.ranks[0], as_bytes(x), idle)


def receive_sum(links: Links, route: Route, total: Array, idle: Idle) -> None:
    """Receive the sum at the manager."""
    links.receive(route.ranks[-1], as_bytes(total), idle)


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
        for piece in pieces(x):
            self._links.receive(self._before, piece, idle)
            if self._after != MANAGER:
                self._links.send(self._after, piece, idle)

    def pass_sum(self, own: Array, idle: Idle) -> None:
        """Add one's own results to the sum that is passed on."""
        if self._before == MANAGER:
            self._links.send(self._after, as_bytes(own), idle)
            return
        for part in parts(own):
            sum_so_far = np.empty_like(part)
            self._links.receive(self._before, as_bytes(sum_so_far), idle)
            sum_so_far += part
            self._links.send(self._after, as_bytes(sum_so_far), idle)

    def leave(self) -> None:
        """Close all connections: the neighbours notice it at once."""
        self._links.disconnect()


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Yield the memory of an array in pieces."""
    data = as_bytes(array)
    for begin in range(0, len(data), PIECE):
        yield data[begin : begin + PIECE]


def parts(array: Array) -> Iterator[Array]:
    """Yield the numbers of an array in pieces."""
    numbers = np.ascontiguousarray(array).reshape(-1)
    count = PIECE // numbers.itemsize
    for begin in range(0, numbers.size, count):
        yield numbers[begin : begin + count]
