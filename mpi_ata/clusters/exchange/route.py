"""The workers of an exchange, in order, and which of them are one link of a chain."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.layout import MANAGER


class Route(NamedTuple):
    """The ranks of the workers in a chain, in order; connections of other generations are closed first."""

    generation: int
    ranks: tuple[int, ...]
    budget: int = 0  # where workers have x and share the sum: the number of gradients in it
    source: int = MANAGER  # who sends x to those of them that do not have it
    stale: tuple[int, ...] = ()
    direct: bool = False  # whether they send to each other directly
    followers: tuple[int, ...] = ()  # those that share memory with the rank before them

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each link of the chain."""
        followers = frozenset(self.followers)
        return tuple(rank for rank in self.ranks if rank not in followers)

    def node_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the link to which a rank belongs: the leader and its followers."""
        followers, begin = frozenset(self.followers), self.ranks.index(rank)
        while self.ranks[begin] in followers:
            begin -= 1
        end = begin + 1
        while end < len(self.ranks) and self.ranks[end] in followers:
            end += 1
        return self.ranks[begin:end]

    def packed(self) -> IntArray:
        """Return it as it is sent."""
        head = self.generation, self.budget, self.source, self.direct, len(self.stale), len(self.followers)
        return np.array([*head, *self.stale, *self.followers, *self.ranks], np.int64)


def unpacked(data: Array) -> Route:
    """Return the route in a message."""
    numbers = np.ascontiguousarray(data).reshape(-1).view(np.int64).tolist()
    generation, budget, source, direct, stale, followers, *ranks = numbers
    begin = stale + followers
    lists = tuple(ranks[begin:]), tuple(ranks[:stale]), tuple(ranks[stale:begin])
    return Route(generation, lists[0], budget, source, lists[1], bool(direct), lists[2])


def followers_of(ranks: tuple[int, ...], nodes: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that share memory with the one before them; `nodes` has all ranks that share any."""
    return tuple(b for a, b in pairwise(ranks) if b in nodes and nodes[b] == nodes.get(a))
