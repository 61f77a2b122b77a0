"""What every allocator promises."""

from collections.abc import Sequence
from typing import Protocol

from mpi_ata.arrays import IntArray, State


class Allocator(Protocol):
    """Decides the quotas of each round, and learns from the seconds that tasks took."""

    n: int
    budget: int

    def allocate(self) -> IntArray:
        """The quotas of the coming round, one for each worker."""

    def observe(self, worker: int, seconds: Sequence[float], unfinished: float = 0.0) -> None:
        """Learn from the seconds of a worker's finished tasks, and from those it spent on a stopped one.

        Where an allocator has a true attribute `overhead`, the overhead of orders is added to the latter.
        """

    def state(self) -> State:
        """All that was learned, as named arrays of numbers."""

    def restore(self, state: State) -> None:
        """Take over what `state` gave."""

    def inherit(self, rounds: int, known: State) -> None:
        """Begin with what earlier rounds taught: sums of tasks, seconds, squares, ... of each worker."""


def checked_budget(n: int, budget: int) -> int:
    """The budget, where it and the number of workers make sense."""
    if n < 1:
        raise ValueError(f"{n=} must be at least 1")
    if budget < 1:
        raise ValueError(f"{budget=} must be at least 1")
    return budget


class NonAdaptive:
    """The learning half of an allocator that has nothing to learn."""

    def observe(self, worker: int, seconds: Sequence[float], unfinished: float = 0.0) -> None:
        """Nothing is learned."""

    def state(self) -> State:
        """Nothing was learned."""
        return {}

    def restore(self, state: State) -> None:
        """There is nothing to take over."""

    def inherit(self, rounds: int, known: State) -> None:
        """What others learned is of no use here."""
