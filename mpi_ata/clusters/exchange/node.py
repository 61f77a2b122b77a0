"""Workers of one node that are neighbours in an exchange: the first one is the leader, the others follow.

x passes through the leader's slot of the memory that they share.  Each follower writes its results to its own
slot.  Then the leader writes the sum so far, piece by piece, to its slot, and the followers take turns in
adding the results of all followers to a piece, in the order of the workers.  They notify each other by
messages of one byte, over connections that the kernel closes when either process ends.  The leader reads the
slots of followers until the sum has left the node.  Nobody writes to them before that, since the manager
orders the next exchange only when it has the whole sum of this one.
"""

from collections.abc import Iterator

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.pieces import parts


class Leader:
    """The first of the neighbours on a node; `followers` are the others, and empty if there are none."""

    def __init__(
        self, links: Links, memory: NodeMemory | None, rank: int, followers: tuple[int, ...]
    ) -> None:
        self._links, self._memory, self._rank, self._followers = links, memory, rank, followers

    def shared(self, array: Array) -> Array:
        """Return the memory from which followers copy an array; the array itself if there are none."""
        return self._memory.at(self._rank) if self._memory is not None and self._followers else array

    def announce(self, idle: Idle) -> None:
        """Notify the followers that what they wait for is in the leader's slot."""
        self._links.transfer(dict.fromkeys(self._followers, memoryview(b"!")), {}, idle)

    def give(self, array: Array, idle: Idle) -> None:
        """Give an array to the followers, and wait until all have it."""
        if self._followers:
            np.copyto(self.shared(array), array)
            self.announce(idle)
            self.confirmed(idle)

    def confirmed(self, idle: Idle) -> None:
        """Wait until each follower confirms that it has written its results, or has what was announced."""
        answers = {rank: memoryview(bytearray(1)) for rank in self._followers}
        self._links.transfer({}, answers, idle)

    def added(self, so_far: Iterator[Array], idle: Idle) -> Iterator[Array]:
        """Yield the pieces of a sum, with the results of all followers added.

        While the leader receives a piece, each follower works on an earlier one.
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
        """Return a piece of the sum from the slot of the follower that has finished it."""
        turn = number % len(self._followers)
        self._links.receive(self._followers[turn], memoryview(bytearray(1)), idle)
        return slots[turn][number]


class Follower:
    """A worker that exchanges x and the sum with other nodes through its leader."""

    def __init__(self, links: Links, memory: NodeMemory, rank: int, node: tuple[int, ...]) -> None:
        self._links, self._memory, self._rank = links, memory, rank
        self._leader, *self._followers = node

    def take(self, array: Array, idle: Idle) -> None:
        """Copy what the leader announces."""
        self._links.connect(self._leader)  # so that the leader notices if this rank leaves
        self._wait(idle)
        np.copyto(array, self._memory.at(self._leader))

    def add(self, own: Array, idle: Idle) -> None:
        """Write this worker's results to its slot, and finish its share of the pieces of the sum."""
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
        """Notify the leader that this worker is done with something."""
        self._links.send(self._leader, memoryview(b"!"), idle)

    def _wait(self, idle: Idle) -> None:
        self._links.receive(self._leader, memoryview(bytearray(1)), idle)
