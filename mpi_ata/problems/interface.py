"""What a problem promises, and what it sees of a task."""

from collections.abc import Callable
from typing import Any, Protocol

from numpy.random import Generator

from mpi_ata.arrays import Array
from mpi_ata.randomness import Purpose, Streams


class Task:
    """One unit of work, as a problem sees it."""

    __slots__ = ("_poll_stop", "_rng", "_streams", "index", "number", "round", "worker")

    def __init__(
        self,
        streams: Streams,
        round: int,
        worker: int,
        number: int,
        poll_stop: Callable[[], bool] | None = None,
        index: int | None = None,
    ) -> None:
        self.round, self.worker, self.number = round, worker, number
        self._streams, self._poll_stop = streams, poll_stop
        self._rng: Generator | None = None
        self.index = index  # in the sequence that all workers share, where the problem has `shares_draws`

    @property
    def rng(self) -> Generator:
        """Random numbers that depend on seed, round, worker and task number alone."""
        if self._rng is None:
            self._rng = self._streams.at(self.round, self.worker, self.number)
        return self._rng

    def stopped(self) -> bool:
        """Return whether the result is no longer needed: a long task may check, and return early."""
        return self._poll_stop is not None and self._poll_stop()


def task_streams(seed: int) -> Streams:
    """Return the random streams from which the tasks of a run draw."""
    return Streams(seed, Purpose.TASK)


class Problem(Protocol):
    """What a task computes: a gradient, or any array of the shape of x.

    A problem may have more, each looked up by name:
    `gradients(x, tasks)`, the sum over several tasks in one call, used only where task times are drawn;
    `setup(worker, n)`, called once on each rank before the clock starts, with worker None on the manager and
    in a simulation;
    `expect(tasks)`, called on workers before the tasks of an order, with an iterator over these and those
    that probably come next, so that it can read ahead what they need: each may come or not;
    `shares_draws`, whether each task needs a `task.index` that no other used task has: 0, 1, 2, ...;
    `halved_results` and `halved_x`, how many of the first numbers of results, or of x, travel as bfloat16;
    `bind(update)`, the update for its points, where they have parts that an update should not move;
    `loss(x)` and `minimum`, the least possible loss, for stopping at a gap;
    `evaluate(x)`, a dict of further metrics by name; an entry "loss" replaces `loss(x)`;
    `evaluation_parts`, `evaluate_part(x, part)` and `combine_parts(x, numbers)`, the same on all workers:
    each part is a list of numbers, and `numbers` are those of all parts, one after the other.
    Both are called on the manager, off the clock.
    """

    @property
    def x0(self) -> Array:
        """The point where a run starts; its type, float32 or float64, is that of everything sent."""

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the result of one task at the point x, which is read-only."""


class Computation(Protocol):
    """What a task computes where that is no gradient; for the method `Map`.

    x and results are made of arrays, numbers, strings, None, dict, list and tuple.  `combine(x, results)`, if
    there is one, is called on the manager and returns the next x.  `setup`, `loss` and `evaluate` are as in a
    Problem.
    """

    @property
    def x0(self) -> Any:
        """What the tasks of the first round are given."""

    def compute(self, x: Any, task: Task) -> Any:
        """Return the result of one task; the arrays in x are read-only."""


AnyProblem = Problem | Computation


def returns_values(problem: AnyProblem) -> bool:
    """Return whether tasks return any values, rather than gradients that are added up."""
    return hasattr(problem, "compute") and not hasattr(problem, "gradient")
