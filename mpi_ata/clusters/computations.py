"""How a task is computed, and how its result is checked.

Points and results are arrays, or where tasks return values of any kind, those values packed as bytes.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, blocks, described
from mpi_ata.errors import (
    BadResultError,
    RunError,
    UsageError,
    describe_error,
    in_users_code,
    is_users_own,
    users_code,
    users_line,
)
from mpi_ata.packing import EMPTY, Packed, pack, unpack, unpack_all
from mpi_ata.problems import AnyProblem, ProblemAbilities, Task

DRAWS_GLOBALLY = "tasks draw from random or np.random: results will not repeat; draw from task.rng instead"
FEW = 8  # numbers that Python looks at faster than a library: its code may not be in the cache


class TaskResult(NamedTuple):
    """What a task of a computation returned."""

    worker: int
    number: int  # of the task among those of its worker in the round
    value: Any
    seconds: float


def compute(problem: ProblemAbilities, x: Array, tasks: Sequence[Task], at_once: bool = False) -> Array:
    """Return the sum of the tasks' results; copy it to keep it, since a problem may reuse its array.

    Of a computation, return the packed numbers and results of the tasks; x is packed too.
    """
    if (gradient := problem.gradient) is None:
        return np.concatenate([part for task in tasks for part in packed_result(problem, x, task)])
    if len(tasks) == 1:
        return _result(gradient, x, tasks[0], tasks[0])
    if at_once and problem.gradients is not None:
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
        rule = "check gradient() or the loss, or try a smaller step_size (learning rate)"
        raise BadResultError(f"{where}: a result contains {what}; {rule}")
    if not (min(seconds) >= 0 and math.fsum(seconds) <= longest):
        rule = f"must be from 0 to {longest:.3g} seconds; check the clock of that host"
        raise BadResultError(f"{where}: the reported task times {list(seconds)[:3]} {rule}")


def _result(function: Callable[..., Any], x: Array, given: object, task: Task) -> Array:
    try:
        answer = function(x, given)
    except BaseException as error:
        if not is_users_own(error):
            raise
        raise _task_error(error, given, task) from None
    if type(answer) is np.ndarray and answer.dtype == x.dtype and answer.shape == x.shape:
        return answer
    return _converted(answer, x, given, task)


def _task_error(error: BaseException, given: object, task: Task) -> RunError:
    """Return the error for a task that failed."""
    what = named_task(task, " failed")
    if isinstance(error, ValueError) and "read-only" in str(error):
        rule = "x is read-only for tasks, which may work on a copy: x = x.copy()"
        return RunError(f"{what}: {describe_error(error)}; {rule}")
    failure = in_users_code(what, error)
    if isinstance(error, TypeError) and not users_line(error):  # it could not even be called
        return RunError(f"{failure}; it is called as {_called(given)}")
    return failure


def _called(given: object) -> str:
    return "gradient(x, task)" if isinstance(given, Task) else "gradients(x, tasks)"


def _converted(answer: Any, x: Array, given: object, task: Task) -> Array:
    """Return a result as an array like x, or reject it."""
    with suppress(Exception):  # lists of different lengths, say, or an array on a GPU
        found = np.asarray(answer)
        if found.shape == x.shape and found.dtype.kind in "fiubO":  # no complex numbers, no texts
            return found.astype(x.dtype)
    raise BadResultError(
        f"{named_task(task)} returned {described(answer)}; "
        f"{_called(given)} must return an array like x, of {x.dtype} and shape {x.shape}"
    )


def evaluated_part(problem: Any, x: Array, part: int) -> list[float]:
    """Return the numbers of one part of an evaluation."""
    with users_code(f"evaluate_part() of the problem failed for part {part}"):
        return [float(value) for value in problem.evaluate_part(x, part)]


def set_up(problem: AnyProblem, worker: int | None, n: int) -> None:
    """Call the problem's setup(), if it has one; `worker` is None on the manager and in a simulation."""
    if (setup := ProblemAbilities.of(problem).setup) is not None:
        with users_code("setup(worker, n) of the problem failed"):
            setup(worker, n)


def packed_result(problem: ProblemAbilities, x: Packed, task: Task) -> tuple[Packed, Packed]:
    """Return the number and the result of a task; each task has an x of its own, since it may change it."""
    assert problem.compute is not None
    with users_code(named_task(task, " failed")):
        value = problem.compute(unpack(x), task)
    return pack(task.number), pack(value, "what compute() returned")


def named_task(task: Task, verb: str = "") -> str:
    """Return a task's name for messages; in round 0 a worker does one to warm up."""
    who = f"task of worker {task.worker}{verb}"
    return f"a {who} in round {task.round}" if task.round else f"the warm-up {who}"


def results_of(worker: int, data: Packed, seconds: Sequence[float], where: str) -> list[TaskResult]:
    """Return the results that packed_result() returned for tasks, joined end to end."""
    found = unpack_all(data)
    if len(found) != 2 * len(seconds):
        raise BadResultError(f"{where}: {len(found) // 2} results came for {len(seconds)} tasks")
    rows = zip(found[::2], found[1::2], seconds, strict=True)
    return [TaskResult(worker, number, value, second) for number, value, second in rows]


def template_of(problem: AnyProblem) -> Array:
    """Return an array like those that are sent, or an empty one where they are packed values of any size."""
    found = ProblemAbilities.of(problem)
    if found.gradient is None and found.compute is None:
        raise UsageError(f"{type(problem).__name__} needs gradient(x, task), or compute(x, task) for Map")
    return EMPTY if found.returns_values else problem.x0


def first_point(problem: AnyProblem) -> Array:
    """Return the point where a run starts, packed if it is that of a computation."""
    return pack(problem.x0, "x0") if ProblemAbilities.of(problem).returns_values else problem.x0
