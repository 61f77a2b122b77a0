"""What every allocator promises."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mpi_ata.abilities import declared
from mpi_ata.arrays import BoolArray, IntArray, State
from mpi_ata.errors import require
from mpi_ata.limits import check_tasks


class Allocator(Protocol):
    """Decides the quotas of each round and learns from the seconds that tasks took.

    Optional: `speed_changes`, those noticed in the last round, are recorded.  `sure` is how many tasks of
    each worker end well before the round does: their results may come in one message, for which the round
    waits.  `observe_overrun(worker, seconds)` gets the seconds that a stopped task still takes, in parts.
    """

    n: int
    budget: int

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round, 0 for workers that are not available; at least one is."""

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Learn from one worker's tasks.

        `seconds` are those of finished tasks, `stopped` those spent on stopped ones; `overhead` is the time
        that the order spent on the way.
        """

    def state(self) -> State:
        """Return what was learned, as named arrays of numbers."""

    def restore(self, state: State) -> None:
        """Resume from what `state` returned."""

    def inherit(self, rounds: int, known: State) -> None:
        """Start from earlier rounds: sums of tasks, seconds, squares, ... of each worker."""


class AllocatorAbilities(NamedTuple):
    """What an allocator may have beside quotas; None where it does not."""

    inherit: Callable[[int, State], None] | None = None
    observe_overrun: Callable[[int, float], None] | None = None
    sure: IntArray | None = None  # of the present round
    speed_changes: Sequence[Any] = ()  # of the last round

    @classmethod
    def of(cls, allocator: object) -> "AllocatorAbilities":
        """Return what an allocator has, if there is one."""
        return declared(cls, allocator)


def checked_budget(n: int, budget: int) -> int:
    """Return the budget, if it and the number of workers are valid."""
    require(n >= 1, f"{n=} must be at least 1")
    require(budget >= 1, f"{budget=} must be at least 1")
    check_tasks("budget", budget)
    return budget


class NonAdaptive:
    """The learning half of an allocator that does not learn."""

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Learn nothing."""

    def state(self) -> State:
        """Return nothing, since nothing was learned."""
        return {}

    def restore(self, state: State) -> None:
        """Do nothing: there is no state."""

    def inherit(self, rounds: int, known: State) -> None:
        """Do nothing: earlier rounds do not matter here."""
