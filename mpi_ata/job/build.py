"""Building what a run consists of from its job: here the user's code is imported."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import described
from mpi_ata.clusters import FaultPolicy
from mpi_ata.clusters.wire import halves
from mpi_ata.errors import UsageError, describe_error, one_line
from mpi_ata.job.computation import check_computation
from mpi_ata.job.demand import check_point, check_workers, tasks_per_round
from mpi_ata.job.method_table import check_allocator, split_update
from mpi_ata.job.schema import Job, prefix_errors
from mpi_ata.job.stop import Stop
from mpi_ata.job.times_table import TimesTable
from mpi_ata.job.user_class import UserClass
from mpi_ata.job.user_law import UserLaw
from mpi_ata.limits import check_tasks
from mpi_ata.methods import SGD, Method
from mpi_ata.methods.replicated_sgd import ReplicatedSGD
from mpi_ata.problems import AnyProblem
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Update

_GIVEN = ("n", "seed", "means", "x0", "combine", "allocator", "update")  # to a method, beside its table


class Parts(NamedTuple):
    """What a run consists of, beside its cluster."""

    problem: AnyProblem
    times: DrawnTimes | None  # where task times are drawn
    method: Method


def build_parts(job: Job, n: int | None = None, problem: AnyProblem | None = None) -> Parts:
    """Build the parts of a run on n workers; n and the problem are those of the job unless given."""
    n = n or job.run.workers
    if n is None:
        raise UsageError(f"{job.path}: how many workers? Set workers in [run], or use --workers")
    with prefix_errors(job.path):
        check_workers(n)
        problem = build_problem(job) if problem is None else problem
        check_problem(problem, job.stop, any_x=bool(getattr(job.method.factory, "any_x", False)))
        times = build_times(job, n)
        method = _build_method(job, problem, n, times)
        fault_policy(job, method)
        return Parts(problem, times, method)


def fault_policy(job: Job, method: Method) -> FaultPolicy:
    """Return what to do about workers that misbehave; tasks on a worker's own data cannot be reissued."""
    owned = bool(getattr(method, "owns_data", False))
    if owned and job.faults.reissues:
        raise UsageError(
            '[faults] "reissue" gives tasks to other workers, but with this method each worker owns its '
            'data; use "stop"'
        )
    return replace(job.faults, owned=owned)


def build_problem(job: Job) -> AnyProblem:
    """Build the problem alone."""
    problem: AnyProblem = job.problem.build(seed=job.run.seed)
    return problem


def build_times(job: Job, n: int) -> DrawnTimes | None:
    """Build the drawn task times of a run on n workers, where the job has a law for them."""
    if job.times is None:
        return None
    seed, law = job.run.seed, build_law(job.times, n, job.run.seed)
    try:
        label, changes, stoppable = job.times.label(seed), job.times.changes, job.times.stoppable
        times = DrawnTimes(law, seed, job.times.unit, label, changes, stoppable)
    except ValueError as error:
        raise UsageError(f"[[times.changes]] {one_line(error)}") from None
    if not times.representable():
        raise UsageError("[times] the times overflow or vanish; choose another scale, unit or factor")
    return times


def build_law(times: TimesTable, n: int, seed: int) -> Law:
    """Build the law of task times for n workers; a user's own law is checked."""
    law: Law = times.law.build(n=n, seed=seed)
    return UserLaw(law, n) if isinstance(times.law.cls, UserClass) else law


def build_allocator(job: Job, n: int, times: DrawnTimes | None) -> Allocator | None:
    """Build the allocator, where the method has one."""
    if job.allocator is None:
        return None
    allocator: Allocator = job.allocator.build(**_known(job, n, times))
    return allocator


def greedy_counterpart(job: Job) -> str:
    """Return the method to use with greedy allocation, where the job's rejects it."""
    return str(getattr(job.method.factory, "greedy_instead", ""))


def _build_method(job: Job, problem: AnyProblem, n: int, times: DrawnTimes | None) -> Method:
    method, update = split_update(job.method, job.path.parent)
    check_allocator(method, job.allocator)
    method.check_keys(_GIVEN)  # before the update misses one that is misspelt
    known = _known(job, n, times) | {
        "x0": problem.x0,
        "combine": getattr(problem, "combine", None),
        "allocator": build_allocator(job, n, times),
        "update": update and bound_update(problem, update.build()),
    }
    built: Method = method.build(**known)
    built = replicated(built, problem) if job.run.replicated else built
    check_tasks("[allocator] budget", tasks_per_round(built))  # an allocator of the user's may not have
    return built


def replicated(method: Method, problem: AnyProblem) -> ReplicatedSGD:
    """Return the same method with x and the state of the update on the workers."""
    if halves(problem):
        why = "adds up results along a chain, which would round what travels as bfloat16 at every worker"
        raise UsageError(f"[run] replicated = true {why}; remove it, or wire and wire_x of the problem")
    if type(method) is not SGD:
        raise UsageError("[run] replicated = true is for the method sgd; remove it")
    return ReplicatedSGD(method.x, method.allocator, method.update)


def replicated_update(method: Method) -> Update | None:
    """Return the update that workers need, where they keep x."""
    return method.update if isinstance(method, ReplicatedSGD) else None


def bound_update(problem: AnyProblem, update: Update) -> Update:
    """Return the update for the points of a problem, which may have parts that no update should move."""
    bound: Update = problem.bind(update) if hasattr(problem, "bind") else update
    return bound


def _known(job: Job, n: int, times: DrawnTimes | None) -> dict[str, Any]:
    return {"n": n, "seed": job.run.seed} | ({"means": times.means} if times else {})


def check_problem(problem: AnyProblem, stop: Stop, any_x: bool = False) -> None:
    """Reject a problem that lacks what the run will ask of it."""
    needs = check_computation(problem) if any_x else _check_gradients(problem)
    if stop.needs_loss and not hasattr(problem, "evaluate"):
        needs["loss"] = "loss(x), or evaluate(x) with an entry loss, to stop at a loss or gap"
    if stop.gap is not None:
        needs["minimum"] = "an attribute minimum, the least possible loss, to stop at a gap"
    for name, what in needs.items():
        if not hasattr(problem, name):
            raise UsageError(f"[problem] {type(problem).__name__} needs {what}")


def _check_gradients(problem: AnyProblem) -> dict[str, str]:
    """Reject a point at which no gradient can be computed, and return what the problem needs, by name."""
    name = type(problem).__name__
    try:
        x0: Any = problem.x0
    except AttributeError as error:
        way_out = f"set self.x0 = np.zeros(dimension) in {name}.__init__"
        why = f"{describe_error(error)}; {way_out}"
        raise UsageError(f"[problem] {name} has no x0 to start from: {why}") from None
    except Exception as error:
        raise UsageError(f"[problem] x0 of {name} cannot be read: {describe_error(error)}") from None
    if not isinstance(x0, np.ndarray) or x0.dtype not in (np.float32, np.float64):
        rule = "must be a numpy array of float32 or float64, as np.array([1.0, 2.0])"
        raise UsageError(f"[problem] x0 of {name} {rule}, not {described(x0)}")
    check_point(x0)
    if not x0.size or not x0.ndim:
        raise UsageError(f"[problem] x0 of {name} has shape {x0.shape}; it must have at least one entry")
    if not np.isfinite(x0).all():
        raise UsageError(f"[problem] x0 of {name} contains NaN or infinite numbers; a run cannot start there")
    return {"gradient": "gradient(x, task)"}
