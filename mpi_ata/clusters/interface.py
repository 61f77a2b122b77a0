"""What every cluster promises, and what it returns."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpi_ata.arrays import Array, BoolArray, IntArray, State, blocks, described
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.clusters.values import named_task, packed_result, results_of
from mpi_ata.errors import BadResultError, RunError, describe_error, in_users_code, users_line
from mpi_ata.problems import AnyProblem, Task

DRAWS_GLOBALLY = "tasks draw from random or np.random: results will not repeat; draw from task.rng instead"
FEW = 8  # numbers that Python looks at faster than a library: its code may not be in the cache


class Arrival(NamedTuple):
    """Finished work coming back."""

    worker: int
    result: Any  # the sum over its tasks, which may be overwritten; of a computation a list of TaskResult;
    # of orders that are summed, the last one has the sum of all, and the others None
    seconds: list[float]  # one entry per task
    overhead: float = 0.0  # turnaround of its order minus those seconds: transfer, queueing, waking up


class Arrivals(NamedTuple):
    """All finished work of a round, coming back at once."""

    workers: IntArray
    results: Array  # one row per worker, the sum over its tasks
    seconds: list[list[float]]  # of each worker's tasks
    spent: list[float]  # the sums of those
    overheads: list[float]  # as in an Arrival


class Lost(NamedTuple):
    """A worker that cannot be given work, from now on or for the time being.

    `kind` is "lost" (it died), "overdue", "failed" (a task raised), "bad-result", or "excluded" (it failed
    too often); after "lost" and "excluded" it never comes back.
    """

    worker: int
    tasks: int  # begun and not delivered; 0 for an idle worker
    why: str
    kind: str = "lost"


class Back(NamedTuple):
    """A worker that can be given work again."""

    worker: int
    seconds: list[float]  # of the tasks that it was tried with, whose results nobody uses
    why: str


class Cluster(Protocol):
    """Where tasks run, and the clock they run by.

    A worker holds one order at a time.  With `together` the whole order comes back as one arrival,
    otherwise each task as it finishes, without a round trip in between.  After `stop` no arrival of
    that order is ever returned.  Nobody writes into an x that was handed over.
    """

    n: int
    ledger: Ledger  # what became of each worker's tasks; only the cluster writes it
    available: BoolArray  # which workers can be given work; only the cluster writes it
    draws: Draws | None  # the sequence that tasks share, where the problem asks for one
    grace_expired: Callable[[], bool]  # called while waiting: whether to give up and raise GraceExpired

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Who the workers are, so that later runs recognise them."""

    def now(self) -> float:
        """Return the time on the cluster's clock; it never goes back."""

    def start(
        self,
        workers: IntArray,
        x: Any,
        round: int,
        counts: IntArray | int = 1,
        together: bool = False,
        summed: bool = False,
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j], who must be idle and available.

        With `summed`, the cluster may add up all results in worker order: then the last arrival has the sum,
        and all others have None.
        """

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, or the next worker that is lost or back.

        TimeoutError after `timeout` seconds; an error where nothing is running.
        """

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""

    def state(self) -> State:
        """Return what must be saved after a round so that another process can resume with the next one."""

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from a saved state; orders that could not be saved are lost, and their workers idle."""

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any], ordered: bool = True) -> Iterator[Any]:
        """Yield function(item) for each item, in order; or pairs of index and result as they come.

        The cluster must have been opened without a problem.
        """

    def close(self) -> None:
        """End all work for good."""


def compute(problem: AnyProblem, x: Array, tasks: Sequence[Task], at_once: bool = False) -> Array:
    """Return the sum of the tasks' results; copy it to keep it, since a problem may reuse its array.

    Of a computation, return the packed numbers and results of the tasks; x is packed too.
    """
    if (gradient := getattr(problem, "gradient", None)) is None:
        return np.concatenate([part for task in tasks for part in packed_result(problem, x, task)])
    if len(tasks) == 1:
        return _result(gradient, x, tasks[0], tasks[0])
    if at_once and hasattr(problem, "gradients"):
        return _result(problem.gradients, x, tasks, tasks[0])
    total = np.array(_result(gradient, x, tasks[0], tasks[0]))
    for task in tasks[1:]:
        total += _result(gradient, x, task, task)
    return total


def received(
    worker: int, result: Array, seconds: Sequence[float], x: Array, where: str, longest: float
) -> Any:
    """Return a result, checked; of a computation, as a list of TaskResult."""
    check_result(result, seconds, x, where, longest)
    return results_of(worker, result, seconds, where) if x.dtype == np.uint8 else result


def surely_finite(result: Array) -> bool:
    """Return whether a fast check shows that a result is finite; it may overflow, and show nothing then."""
    if result.size <= FEW:
        return all(map(math.isfinite, result.reshape(-1).tolist()))
    return math.isfinite(np.vdot(result, result))


def add_up(total: Array, result: Array, first: bool, last: bool = True) -> bool:
    """Add a result to a total, or put it there first; return whether the total is surely finite.

    Large arrays are passed through the cache once for both.  Only the last total is checked: what is not
    finite stays so.
    """
    fine = True
    for part, added in blocks(total, result):
        if first:
            np.copyto(part, added)
        else:
            np.add(part, added, out=part)
        fine = fine and (not last or surely_finite(part))
    return fine


def finite(result: Array, x: Array) -> bool:
    """Return whether a result at x is finite; where x is out of range the run has diverged, so True."""
    if surely_finite(result):
        return True
    return bool(np.isfinite(result).all()) or not math.isfinite(np.vdot(x, x))


def check_result(result: Array, seconds: Sequence[float], x: Array, where: str, longest: float) -> None:
    """Reject results that are not finite or not like x, and times that are not from 0 to `longest`.

    `where` names worker and round.
    """
    sums = x.dtype != np.uint8  # packed values are checked when they are unpacked
    if sums and result.shape != x.shape:
        raise BadResultError(
            f"{where}: a result has the shape {result.shape}, but x has {x.shape}; "
            "gradient() must return an array of the shape of x"
        )
    if sums and not finite(result, x):
        what = "NaN" if np.isnan(result).any() else "infinite numbers"
        rule = "check gradient(), or try a smaller step_size"
        raise BadResultError(f"{where}: a result contains {what}; {rule}")
    if not (min(seconds) >= 0 and math.fsum(seconds) <= longest):
        rule = f"must be from 0 to {longest:.3g} seconds; check the clock of that host"
        raise BadResultError(f"{where}: the reported task times {list(seconds)[:3]} {rule}")


def named(worker: int, identity: WorkerIdentity) -> str:
    """Return a worker's name for messages."""
    return f"worker {worker} (host {identity.host}, slot {identity.local_index})"


def _result(function: Callable[..., Any], x: Array, given: object, task: Task) -> Array:
    try:
        answer = function(x, given)
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise _task_error(error, function, task) from None
    if type(answer) is np.ndarray and answer.dtype == x.dtype and answer.shape == x.shape:
        return answer
    return _converted(answer, x, function, task)


def _task_error(error: BaseException, function: Callable[..., Any], task: Task) -> RunError:
    """Return the error for a task that failed."""
    what = named_task(task, " failed")
    if isinstance(error, ValueError) and "read-only" in str(error):
        rule = "x is read-only for tasks, which may work on a copy: x = x.copy()"
        return RunError(f"{what}: {describe_error(error)}; {rule}")
    failure = in_users_code(what, error)
    if isinstance(error, TypeError) and not users_line(error):  # it could not even be called
        return RunError(f"{failure}; it is called as {_called(function)}")
    return failure


def _called(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "gradient")
    return f"{name}(x, {'tasks' if name == 'gradients' else 'task'})"


def _converted(answer: Any, x: Array, function: Callable[..., Any], task: Task) -> Array:
    """Return a result as an array like x, or reject it."""
    with suppress(Exception):  # lists of different lengths, say, or an array on a GPU
        found = np.asarray(answer)
        if found.shape == x.shape and found.dtype.kind in "fiubO":  # no complex numbers, no texts
            return found.astype(x.dtype)
    raise BadResultError(
        f"{named_task(task)} returned {described(answer)}; "
        f"{_called(function)} must return an array like x, of {x.dtype} and shape {x.shape}"
    )


def evaluated_part(problem: Any, x: Array, part: int) -> list[float]:
    """Return the numbers of one part of an evaluation."""
    try:
        return [float(value) for value in problem.evaluate_part(x, part)]
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise in_users_code(f"evaluate_part() of the problem failed for part {part}", error) from None


def announce(problem: Any, tasks: Iterator[Task]) -> None:
    """Call expect() of a problem with the tasks that it will probably do next."""
    try:
        problem.expect(tasks)
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise in_users_code("expect(tasks) of the problem failed", error) from None


def set_up(problem: AnyProblem, worker: int | None, n: int) -> None:
    """Call the problem's setup(), if it has one; `worker` is None on the manager and in a simulation."""
    try:
        if hasattr(problem, "setup"):
            problem.setup(worker, n)
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise in_users_code("setup(worker, n) of the problem failed", error) from None
