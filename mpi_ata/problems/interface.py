"""What a problem promises, and what it sees of a task."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
from numpy.random import Generator

from mpi_ata.abilities import declared
from mpi_ata.arrays import Array
from mpi_ata.errors import RunError
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

    def again(self) -> "Task":
        """Return the same task, with the same random numbers."""
        return Task(self._streams, self.round, self.worker, self.number, self._poll_stop, self.index)

    def stopped(self) -> bool:
        """Return whether the result is no longer needed, so that a long task may return early."""
        return self._poll_stop is not None and self._poll_stop()


def task_streams(seed: int) -> Streams:
    """Return the random streams from which the tasks of a run draw."""
    return Streams(seed, Purpose.TASK)


class Problem(Protocol):
    """What a task computes: a gradient, or any array of the shape of x.

    Optional, each looked up by name; losses and metrics are computed off the clock:

    - `setup(worker, n)`: called once on each rank before the clock starts; `worker` is None on the manager
      and in a simulation
    - `loss(x)`, and `minimum`, the least possible one, for stopping at a gap
    - `evaluate(x)`: a dict of metrics; an entry "loss" replaces `loss(x)`
    - `evaluation_parts`, `evaluate_part(x, part)`, `combine_parts(x, numbers)`: the same on all workers; each
      part is a list of numbers, and `numbers` are those of all parts
    - `gradients(x, tasks)`: the sum over several tasks in one call, used only where task times are drawn
    - `expect(tasks)`: called on workers before an order, with an iterator over its tasks and those that may
      follow, to read ahead
    - `shared_arrays()`: yields arrays, such as copies of frozen weights, each of which is overwritten with
      the manager's before the next one is asked for
    - `shares_draws`: whether each task needs a `task.index` that no other used task has: 0, 1, 2, ...
    - `halved_x`, `halved_results`: how many of the first numbers of x, or of results, travel as bfloat16
    - `bind(update)`: the update to use, where x has parts that an update should not move
    """

    @property
    def x0(self) -> Array:
        """The point where a run starts, of float32 or float64, as everything that is sent."""

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the result of one task at the point x, which is read-only."""


class Computation(Protocol):
    """What a task computes where that is no gradient; for the method `Map`.

    x and results are made of arrays, numbers, strings, None, dict, list and tuple.  `combine(x, results)` on
    the manager, if there is one, returns the next x.  `setup`, `loss` and `evaluate` are as in a Problem.
    """

    @property
    def x0(self) -> Any:
        """What the tasks of the first round are given."""

    def compute(self, x: Any, task: Task) -> Any:
        """Return the result of one task; the arrays in x are read-only."""


AnyProblem = Problem | Computation


class ProblemAbilities(NamedTuple):
    """What a problem may have beside x0, as its docstring says; None where it does not."""

    gradient: Callable[..., Any] | None = None
    gradients: Callable[..., Any] | None = None
    compute: Callable[..., Any] | None = None
    combine: Callable[..., Any] | None = None
    setup: Callable[..., None] | None = None
    shared_arrays: Callable[[], Iterable[npt.NDArray[Any]]] | None = None
    expect: Callable[..., None] | None = None
    bind: Callable[..., Any] | None = None
    shares_draws: bool = False
    halved_x: int = 0
    halved_results: int = 0

    @classmethod
    def of(cls, problem: object) -> "ProblemAbilities":
        """Return what a problem has."""
        return declared(cls, problem)

    @property
    def returns_values(self) -> bool:
        """Whether tasks return any values, rather than gradients that are added up."""
        return self.compute is not None and self.gradient is None


class EvaluationAbilities(NamedTuple):
    """How a problem can be evaluated; None where it cannot."""

    loss: Callable[..., Any] | None = None
    minimum: Any = math.nan
    evaluate: Callable[..., Any] | None = None
    evaluation_parts: int = 0
    combine_parts: Callable[..., Any] | None = None

    @classmethod
    def of(cls, problem: object) -> "EvaluationAbilities":
        """Return what a problem has."""
        return declared(cls, problem)


def returns_values(problem: AnyProblem) -> bool:
    """Return whether tasks return any values, rather than gradients that are added up."""
    return ProblemAbilities.of(problem).returns_values


def shard(size: int, worker: int, n: int) -> tuple[int, int]:
    """Return where the samples of a worker begin and end; the sizes of parts differ by at most one."""
    if not n:
        raise RunError("the number of workers is not known; call setup(worker, n) before the first task")
    if size < n:
        raise RunError(f"{size} samples cannot be divided among {n} workers; use at most {size} workers")
    return size * worker // n, size * (worker + 1) // n
