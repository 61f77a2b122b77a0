"""Workers of one node that are neighbours in an exchange: the first one, their leader, speaks for all.

x passes through the leader's slot of the memory that they share.  Each of the others puts its results into
its own slot.  Then the leader writes the sum so far, piece by piece, into its slot, and the others take turns
in adding all results of the node to a piece, in the order of the workers.  Who has done something
sends one byte, by a connection that the kernel closes when either process ends.  The leader reads the slots
of others until the sum has left the node; nobody writes into one before that, since the manager orders the
next exchange when it has the whole sum of this one.
"""

from collections.abc import Iterator

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.pieces import parts


class Leader:
    """The first of some neighbours, `followers` are the others: none, where it has a node of its own."""

    def __init__(
        self, links: Links, memory: NodeMemory | None, rank: int, followers: tuple[int, ...]
    ) -> None:
        self._links, self._memory, self._rank, self._followers = links, memory, rank, followers

    def shared(self, array: Array) -> Array:
        """Return the memory through which an array gets to the followers; if there are none, the array."""
        return self._memory.at(self._rank) if self._memory is not None and self._followers else array

    def announce(self, idle: Idle) -> None:
        """Let the followers know that what they wait for is in the leader's slot."""
        self._links.transfer(dict.fromkeys(self._followers, memoryview(b"!")), {}, idle)

    def give(self, array: Array, idle: Idle) -> None:
        """Give an array to the followers, until all have it."""
        if self._followers:
            np.copyto(self.shared(array), array)
            self.announce(idle)
            self.confirmed(idle)

    def confirmed(self, idle: Idle) -> None:
        """Wait until each follower has its results in its slot, or has what was announced."""
        answers = {rank: memoryview(bytearray(1)) for rank in self._followers}
        self._links.transfer({}, answers, idle)

    def added(self, so_far: Iterator[Array], idle: Idle) -> Iterator[Array]:
        """Yield the pieces of a sum, with the results of all followers added.

        While one piece comes, each follower has another one to add to.
        """
        if self._memory is None or not self._followers:
            yield from so_far
            return
        self.confirmed(idle)
        count, number = len(self._followers), -1
        slots = [list(parts(self._memory.at(rank))) for rank in self._followers]
        for number, (piece, place) in enumerate(zip(so_far, parts(self._memory.at(self._rank)), strict=True)):
            np.copyto(place, piece)
            self._links.send(self._followers[number % count], memoryview(b"!"), idle)
            if number >= count:
                yield self._summed(slots, number - count, idle)
        for rest in range(max(number + 1 - count, 0), number + 1):
            yield self._summed(slots, rest, idle)

    def _summed(self, slots: list[list[Array]], number: int, idle: Idle) -> Array:
        """Return a piece to which a follower has added, from its slot."""
        turn = number % len(self._followers)
        self._links.receive(self._followers[turn], memoryview(bytearray(1)), idle)
        return slots[turn][number]


class Follower:
    """One of the others."""

    def __init__(self, links: Links, memory: NodeMemory, rank: int, node: tuple[int, ...]) -> None:
        self._links, self._memory, self._rank = links, memory, rank
        self._leader, *self._followers = node

    def take(self, array: Array, idle: Idle) -> None:
        """Copy what the leader announces."""
        self._links.connect(self._leader)  # which so notices if this rank leaves
        self._wait(idle)
        np.copyto(array, self._memory.at(self._leader))

    def add(self, own: Array, idle: Idle) -> None:
        """Put one's own results into one's slot, and add all results to every so-many-th piece of the sum."""
        np.copyto(self._memory.at(self._rank), own)
        self.confirm(idle)
        slots = [list(parts(self._memory.at(rank))) for rank in (self._leader, *self._followers)]
        place = self._followers.index(self._rank)
        for number in range(place, len(slots[0]), len(self._followers)):
            self._wait(idle)
            total = slots[0][number].copy()
            for slot in slots[1:]:
                total += slot[number]
            np.copyto(slots[place + 1][number], total)
            self.confirm(idle)

    def confirm(self, idle: Idle) -> None:
        """Let the leader know that something is done."""
        self._links.send(self._leader, memoryview(b"!"), idle)

    def _wait(self, idle: Idle) -> None:
        self._links.receive(self._leader, memoryview(bytearray(1)), idle)
