"""Building what a run consists of from its job: here the user's code is imported."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import described
from mpi_ata.clusters import FaultPolicy
from mpi_ata.errors import BadResultError, UsageError, describe_error, one_line, prefix_errors
from mpi_ata.job.component import Component
from mpi_ata.job.schema import Job, Stop, TimesTable, check_allocator, choose_update
from mpi_ata.job.tables import Table
from mpi_ata.job.user_code import UserClass, UserLaw
from mpi_ata.limits import check_memory, check_tasks
from mpi_ata.methods import Method
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem, EvaluationAbilities, Problem, ProblemAbilities, TwoPoints
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Update

WORKER_BYTES = 160  # the law and the accounts of one worker, as measured in a simulation
NUMBER_BYTES = 200  # the array and the entry that hold all workers' times of one task number
TIME_BYTES = 8  # of one worker's in it
TASK_BYTES = 200  # one simulated task of an order: its object, its seconds and where they are summed up
COPIES = 4  # of a point at the least: x0, x, a gradient, the sum of gradients

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
        raise UsageError(f"{job.path}: number of workers not set: set workers in [run], or use --workers")
    with prefix_errors(f"{job.path}: "):
        check_workers(n)
        problem = build_problem(job) if problem is None else problem
        can = MethodAbilities.of(job.method.factory)
        with prefix_errors("[problem] "):
            check_problem(problem, job.stop, any_x=can.any_x)
        times = build_times(job, n)
        method = _build_method(job, problem, n, times)
        fault_policy(job, method)
        pairs = can.points_per_task == 2
        return Parts(TwoPoints(cast("Problem", problem)) if pairs else problem, times, method)


def check_workers(n: int) -> None:
    """Reject more workers than this machine can keep accounts of."""
    check_memory(f"workers={n}", n * WORKER_BYTES)


def check_simulation(method: Method, n: int) -> None:
    """Reject rounds whose tasks, or whose points under way, this machine cannot hold in one process."""
    abilities = MethodAbilities.of(method)
    tasks = abilities.tasks_per_round
    needed = tasks / n * (NUMBER_BYTES + n * TIME_BYTES + TASK_BYTES)
    check_memory(f"a simulated round of {tasks:,.0f} tasks", needed)
    if abilities.point_per_worker:
        points, size = min(n, tasks) + COPIES, method.x.size
        check_memory(f"a point of {size:,} numbers for each of {n:,} workers", points * method.x.nbytes)


def fault_policy(job: Job, method: Method) -> FaultPolicy:
    """Return what to do about workers that misbehave; tasks on a worker's own data cannot be reissued."""
    owned = MethodAbilities.of(method).owns_data
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
    table = replace(job.times, unit=job.times.unit * MethodAbilities.of(job.method.factory).points_per_task)
    seed, law = job.run.seed, build_law(table, n, job.run.seed)
    try:
        times = DrawnTimes(law, seed, table.unit, table.label(seed), table.changes, table.stoppable)
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
    return MethodAbilities.of(job.method.factory).greedy_instead


def _build_method(job: Job, problem: AnyProblem, n: int, times: DrawnTimes | None) -> Method:
    method, update = split_update(job.method, job.path.parent)
    check_allocator(method, job.allocator)
    method.check_keys(_GIVEN)  # before the update misses one that is misspelt
    known = _known(job, n, times) | {
        "x0": problem.x0,
        "combine": ProblemAbilities.of(problem).combine,
        "allocator": build_allocator(job, n, times),
        "update": update and bound_update(problem, update.build()),
    }
    built: Method = method.build(**known)
    # An allocator of the user's may not have checked its budget.
    check_tasks("[allocator] budget", MethodAbilities.of(built).tasks_per_round)
    return built


def split_update(method: Component, folder: Path) -> tuple[Component, Component | None]:
    """Return the method and its update, each with its own keys."""
    if not method.accepts("update"):
        return method, None
    update = choose_update(method.keys, folder)
    takes_all = update.accepts_any() and not method.accepts_any()
    keys, own = Table(), Table()
    for key, value in update.keys.items():
        of_update = update.accepts(key) or (takes_all and not method.accepts(key))
        (own if of_update else keys)[key] = value
    others = ("name", "update", *(key for key in update.known_keys() if key != "optimizer"))
    return replace(method, keys=keys, others=others), replace(update, keys=own)


def bound_update(problem: AnyProblem, update: Update) -> Update:
    """Return the update for the points of a problem, which may have parts that no update should move."""
    bind = ProblemAbilities.of(problem).bind
    bound: Update = update if bind is None else bind(update)
    return bound


def _known(job: Job, n: int, times: DrawnTimes | None) -> dict[str, Any]:
    return {"n": n, "seed": job.run.seed} | ({"means": times.means} if times else {})


def check_problem(problem: AnyProblem, stop: Stop, any_x: bool = False) -> None:
    """Reject a problem that lacks what the run will ask of it."""
    if isinstance(problem, type):
        raise UsageError(f"{problem.__name__} is a class; pass an object, as in {problem.__name__}()")
    has, name, has_loss = ProblemAbilities.of(problem), type(problem).__name__, True
    if stop.needs_loss:  # otherwise nobody asks for its loss, which may be a property that takes long
        evaluation = EvaluationAbilities.of(problem)
        has_loss = bool(evaluation.loss or evaluation.evaluate)
    if any_x:
        _check_computation(problem, has)
    else:
        _check_point(problem)
    lacks = {
        "compute(x, task)": any_x and has.compute is None,
        "combine(x, results), which returns the next x": any_x and has.combine is None,
        "gradient(x, task)": not any_x and has.gradient is None,
        "loss(x), or evaluate(x) with an entry loss, to stop at a loss or gap": not has_loss,
        "an attribute minimum, the least possible loss, to stop at a gap": stop.gap is not None
        and not hasattr(problem, "minimum"),
    }
    for what, lacking in lacks.items():
        if lacking:
            raise UsageError(f"{name} needs {what}")


def _check_computation(problem: AnyProblem, has: ProblemAbilities) -> None:
    """Reject a problem with gradients, or with an x0 that cannot be sent."""
    name = type(problem).__name__
    if not hasattr(problem, "x0"):
        raise UsageError(f"{name} needs x0, which the tasks of the first round are given")
    if has.gradient is not None:
        way_out = "remove it, or use another method"
        raise UsageError(f"{name} has gradient(), but the method map uses compute(); {way_out}")
    check_sendable(problem)


def check_sendable(problem: AnyProblem) -> None:
    """Reject an x0 that cannot be sent to workers."""
    try:
        size = pack(problem.x0, "x0").nbytes
    except BadResultError as error:
        raise UsageError(str(error)) from None
    check_memory(f"an x0 of {size:,} bytes", COPIES * size)


def _check_point(problem: AnyProblem) -> None:
    """Reject a point at which no gradient can be computed, or of which there is no room for a few copies."""
    name = type(problem).__name__
    try:
        x0: Any = problem.x0
    except AttributeError as error:
        way_out = f"set self.x0 = np.zeros(dimension) in {name}.__init__"
        raise UsageError(f"{name} has no x0 to start from: {describe_error(error)}; {way_out}") from None
    except Exception as error:
        raise UsageError(f"x0 of {name} cannot be read: {describe_error(error)}") from None
    if not isinstance(x0, np.ndarray) or x0.dtype not in (np.float32, np.float64):
        rule = "must be a numpy array of float32 or float64, as np.array([1.0, 2.0])"
        raise UsageError(f"x0 of {name} {rule}, not {described(x0)}")
    check_memory(f"a point of {x0.size:,} numbers", COPIES * x0.nbytes)
    if not x0.size or not x0.ndim:
        raise UsageError(f"x0 of {name} has shape {x0.shape}; it must have at least one entry")
    if not np.isfinite(x0).all():
        raise UsageError(f"x0 of {name} contains NaN or infinite numbers; a run cannot start there")
