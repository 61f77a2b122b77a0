"""What every allocator promises."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mpi_ata.abilities import declared
from mpi_ata.arrays import BoolArray, IntArray, State
from mpi_ata.errors import require
from mpi_ata.limits import check_tasks


class Allocator(Protocol):
    """Decides the quotas of each round and learns from the seconds that tasks took.

    Three things are optional.  `speed_changes`, the changes of speed noticed in the last round, are recorded.
    `sure` is how many tasks of each worker are done well before the round ends: their results may come in one
    message, and the round then waits for it.  A method `observe_overrun(worker, seconds)` is called with the
    seconds that a worker spent on a stopped task after the stop, in parts, as the time passes.
    """

    n: int
    budget: int

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round, 0 for workers that are not available; at least one is."""

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Learn from one worker's tasks.

        `seconds` are those of finished tasks; `stopped` were spent on tasks that were stopped, and would have
        taken longer; `overhead` is the time that the order spent on the way.
        """

    def state(self) -> State:
        """Return all that was learned, as named arrays of numbers."""

    def restore(self, state: State) -> None:
        """Resume from what `state` returned."""

    def inherit(self, rounds: int, known: State) -> None:
        """Start from what earlier rounds learned: sums of tasks, seconds, squares, ... for each worker."""


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
