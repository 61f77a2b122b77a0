"""Points and results of computations, which are packed values of any size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi_ata.arrays import Array
from mpi_ata.errors import BadResultError, RunError, UsageError, in_users_code
from mpi_ata.packing import EMPTY, Packed, pack, unpack, unpack_all
from mpi_ata.problems import AnyProblem, Task, returns_values


class TaskResult(NamedTuple):
    """What a task of a computation returned."""

    worker: int
    number: int  # of the task among those of its worker in the round
    value: Any
    seconds: float


def packed_result(problem: Any, x: Packed, task: Task) -> tuple[Packed, Packed]:
    """Return the number and the result of a task; each task has an x of its own, since it may change it."""
    point = unpack(x)
    try:
        value = problem.compute(point, task)
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        raise in_users_code(named_task(task, " failed"), error) from None
    named = getattr(problem, "result_name", None)  # a farm calls a function of the user's
    return pack(task.number), pack(value, named(point, task) if named else "what compute() returned")


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
    if not (hasattr(problem, "gradient") or hasattr(problem, "compute")):
        raise UsageError(f"{type(problem).__name__} needs gradient(x, task), or compute(x, task) for Map")
    return EMPTY if returns_values(problem) else problem.x0


def first_point(problem: AnyProblem) -> Array:
    """Return the point where a run starts, packed if it is that of a computation."""
    return pack(problem.x0, "x0") if returns_values(problem) else problem.x0
