"""What every cluster promises, and what flows back from it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.errors import RunError, in_users_code
from mpi_ata.problems import Problem, Task


class Arrival(NamedTuple):
    """Finished work coming back."""

    worker: int
    result: Array  # the sum over the tasks in it; whoever gets it may overwrite it
    seconds: list[float]  # one entry a task
    overhead: float = 0.0  # turnaround of its order minus those seconds: transfer, queueing, waking up


class Cluster(Protocol):
    """Where tasks run, and the clock they run by.

    A worker holds one order at a time.  With `together` the whole order comes back as one arrival,
    otherwise each task as it finishes, without a round trip in between.  After `stop` no arrival of
    that order is ever returned.  Nobody writes into an x that was handed over.
    """

    n: int
    speeds: TaskTimeStats  # what each worker delivered so far
    overdue: Callable[[], bool]  # asked while waiting: whether to give up, and raise Overdue

    @property
    def places(self) -> tuple[WorkerIdentity, ...]:
        """Who the workers are, so that later runs recognise them."""

    @property
    def worker_time(self) -> Array:
        """The seconds that each worker spent on tasks so far, stopped ones included."""

    @property
    def undelivered(self) -> IntArray:
        """How many tasks each worker began so far that never came back because they were stopped."""

    @property
    def undelivered_time(self) -> Array:
        """The seconds of worker time that went into those."""

    def now(self) -> float:
        """The time on the cluster's clock; it never goes back."""

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j], each of which must be idle."""

    def wait(self, timeout: float | None = None) -> Arrival:
        """The next arrival; TimeoutError after `timeout` seconds; an error where nothing is running."""

    def stop(self, workers: IntArray) -> Array:
        """Withdraw what these workers have not delivered; the seconds that each spent on it."""

    def idle(self) -> IntArray:
        """The workers that hold no order."""

    def state(self) -> State:
        """What must be saved at the end of a round so that the next one can come in another process."""

    def restore(self, state: State) -> None:
        """Go on from what `state` gave; orders that could not be saved are gone, and their workers idle."""

    def close(self) -> None:
        """End all work for good."""


def compute(problem: Problem, x: Array, tasks: Sequence[Task], at_once: bool = False) -> Array:
    """The sum of the tasks' results; copy what you keep, since a problem may reuse the array it returns."""
    if len(tasks) == 1:
        return _result(problem.gradient, x, tasks[0], tasks[0])
    if at_once and hasattr(problem, "gradients"):
        return _result(problem.gradients, x, tasks, tasks[0])
    total = np.array(_result(problem.gradient, x, tasks[0], tasks[0]))
    for task in tasks[1:]:
        total += _result(problem.gradient, x, task, task)
    return total


def _result(function: Callable[..., Any], x: Array, given: object, task: Task) -> Array:
    try:
        answer = function(x, given)
        result = np.asarray(answer, x.dtype)
    except RunError:
        raise
    except Exception as error:
        raise in_users_code(f"a task of worker {task.worker} failed in round {task.round}", error) from None
    if answer is None:
        name = "gradient" if given is task else "gradients"
        raise RunError(f"{name}() returned None instead of an array; is there a return missing in it?")
    if result.shape != x.shape:
        raise RunError(
            f"a task returned an array of shape {result.shape}, but x has {x.shape}; "
            "gradient() must return one number for each of x"
        )
    return result


def set_up(problem: Problem, worker: int | None, n: int) -> None:
    """Let the problem prepare itself, where it wants to: for one worker, or for none or all of them."""
    try:
        if hasattr(problem, "setup"):
            problem.setup(worker, n)
    except RunError:
        raise
    except Exception as error:
        raise in_users_code("setup() of the problem failed", error) from None
