"""What a problem promises, and what it is shown of a task."""

from collections.abc import Callable
from typing import Protocol

from numpy.random import Generator

from mpi_ata.arrays import Array
from mpi_ata.randomness import Purpose, Streams


class Task:
    """One unit of work, as a problem sees it."""

    __slots__ = ("_asked", "_rng", "_streams", "number", "round", "worker")

    def __init__(
        self, streams: Streams, round: int, worker: int, number: int, asked: Callable[[], bool] | None = None
    ) -> None:
        self.round, self.worker, self.number = round, worker, number
        self._streams, self._asked = streams, asked
        self._rng: Generator | None = None

    @property
    def rng(self) -> Generator:
        """Random numbers that depend on seed, round, worker and task number alone."""
        if self._rng is None:
            self._rng = self._streams.at(self.round, self.worker, self.number)
        return self._rng

    def stopped(self) -> bool:
        """Whether the result is no longer wanted: a long task may ask, and return early."""
        return self._asked is not None and self._asked()


def task_streams(seed: int) -> Streams:
    """The random streams from which the tasks of a run draw."""
    return Streams(seed, Purpose.TASK)


class Problem(Protocol):
    """What a task computes.

    A problem may offer more, each looked up by name:
    `gradients(x, tasks)`, the sum over several tasks in one call, used only where task times are drawn;
    `setup(worker, n)`, called once on each rank before the clock starts, with worker None on a process
    that stands for no single worker (the manager, the virtual cluster);
    `loss(x)` and `minimum`, the least possible loss, for stopping at a gap;
    `evaluate(x)`, a dict of further figures by name; an entry "loss" is taken for `loss(x)`.
    Both are asked on the manager, off the clock.
    """

    @property
    def x0(self) -> Array:
        """The point where a run starts: float32 or float64 decides what travels."""

    def gradient(self, x: Array, task: Task) -> Array:
        """The result of one task at the point x, which must not be written into."""
