"""A point and the state of its update that live on workers: the manager's side, and a worker's."""

from collections.abc import Callable

import numpy as np

from mpi_ata.arrays import Array, blocks
from mpi_ata.packing import Packed, pack, unpack
from mpi_ata.updates import Update

Fetch = Callable[["Replica"], Packed]


class Replica:
    """A point that the workers of each round move themselves, all in the same way.

    The manager has it only from when it asks for it until the workers move it; `update` is then as
    if it had made all steps.
    """

    def __init__(self, update: Update) -> None:
        self.update = update
        self.round = 0  # after which the workers have it
        self.fresh: frozenset[int] = frozenset()  # workers that have it
        self.fetch: Fetch | None = None  # asks a worker for it
        self._x: Array | None = None  # if the manager has it

    @property
    def here(self) -> bool:
        """Whether the manager has it."""
        return self._x is not None

    def value(self) -> Array:
        """Return the point, from one of the workers that have it."""
        if self._x is None:
            assert self.fetch is not None
            state = opened(self.fetch(self))
            self._x = np.array(state.pop("x"))
            self.update.restore(state)
        return self._x

    def put(self, x: Array) -> None:
        """Take a point that no worker has."""
        self._x, self.fresh = x, frozenset()

    def moved(self, workers: frozenset[int], round: int) -> None:
        """Note that these workers have moved it, and all others have an old one."""
        self._x, self.fresh, self.round = None, workers, round

    def packed(self) -> Packed:
        """Return point and state as they are sent."""
        return closed(self.value(), self.update)


class Copy:
    """A worker's own copy.

    A step is made only when the next order shows that the round is complete: until then, the sum of its
    gradients is kept beside it.
    """

    def __init__(self, update: Update | None) -> None:
        self._update = update
        self._x: Array = np.empty(0)
        self._pending: tuple[int, int, Array] | None = None  # round, number of gradients, and their sum

    def at(self, round: int) -> Array:
        """Return the point after a round, which is the latest one or the one before.

        The sum of a later round is kept: the manager may look at the point while that round goes on.
        """
        if self._pending is not None and self._pending[0] == round and self._update is not None:
            (_, count, g), self._pending = self._pending, None
            for (part,) in blocks(g):
                part /= count
            self._x = self._update(self._x, g)
            self._x.flags.writeable = False
        return self._x

    def take(self, data: Packed) -> None:
        """Take another worker's point and state of the update."""
        assert self._update is not None
        state = opened(data)
        self._x = np.array(state.pop("x"))
        self._x.flags.writeable = False
        self._update.restore(state)
        self._pending = None

    def keep(self, round: int, count: int, total: Array) -> None:
        """Keep the sum of a round's gradients until it is known that all have it."""
        self._pending = round, count, total

    def packed(self, round: int) -> Packed:
        """Return point and state after a round."""
        assert self._update is not None
        return closed(self.at(round), self._update)


def closed(x: Array, update: Update) -> Packed:
    """Return a point and the state of its update as bytes."""
    return pack({"x": x} | update.state(), "the point")


def opened(data: Packed) -> dict[str, Array]:
    """Return what `closed` has packed."""
    found: dict[str, Array] = unpack(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
    return found
