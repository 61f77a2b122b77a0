"""What a script asks of minimize(), and the parts of the run that are made from it."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpi_ata.clusters import FaultPolicy
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Start
from mpi_ata.errors import UsageError, one_line
from mpi_ata.job.build import bound_update, check_problem, replicated
from mpi_ata.job.component import Component
from mpi_ata.job.demand import check_simulation, check_workers
from mpi_ata.job.stop import Stop
from mpi_ata.job.tables import Tables
from mpi_ata.job.user_class import UserClass
from mpi_ata.methods import SGD
from mpi_ata.problems import Problem
from mpi_ata.script.allocator import AnyAllocator, build_allocator
from mpi_ata.script.arguments import check_arguments
from mpi_ata.script.description import ScriptRun, describe_run, run_table
from mpi_ata.script.place import count_workers, drawn_times
from mpi_ata.script.record import Paths, output_options, plan_script
from mpi_ata.script.together import is_worker
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Update


@dataclass(frozen=True)
class Prepared:
    """The parts of a run, and where it starts."""

    problem: Problem
    times: DrawnTimes | None
    method: SGD
    described: ScriptRun
    start: Start

    @property
    def tables(self) -> Tables:
        """Return the settings on which all ranks must agree."""
        return self.described.tables

    @property
    def digest(self) -> bytes:
        """Return a hash of all on which they must agree."""
        return self.described.digest


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of minimize()."""

    problem: Problem | str
    budget: int | None
    update: Update
    rounds: int | None = None
    stop: Stop | None = None
    allocator: AnyAllocator | None = None
    workers: int | None = None
    times: DrawnTimes | Law | None = None
    seed: int = 0
    out: str | Path | None = None
    resume: bool = False
    warm_start: Paths = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    accept_changes: bool = False
    evaluate_every: int
    checkpoint_rounds: int | None = None
    checkpoint_seconds: float | None = None
    grace: float = 20.0
    faults: FaultPolicy | None = None
    observers: Sequence[Observer] = ()
    progress: bool = False
    exchange: str = "auto"
    replicated: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # which a run file cannot hold as a setting
                object.__setattr__(self, name, value.item())

    def prepare(self, planned: bool = True) -> Prepared:
        """Build the parts of the run, checked; without `planned` the run file is not looked at."""
        check_arguments(**vars(self))
        times = drawn_times(self.times, self.seed)
        n, stop = count_workers(self.workers, times), self.limits()
        check_workers(n)
        problem = self._built_problem()
        check_problem(problem, stop)
        allocator = build_allocator(self.allocator, n, self.budget, self.seed, times)
        method = SGD(problem.x0, allocator, bound_update(problem, self._fresh_update()))
        if self.workers is None and times is not None:
            check_simulation(method, n)
        saving = self.checkpoint_rounds, self.checkpoint_seconds, self.grace
        travel = {"exchange": self.exchange, "replicated": self.replicated}
        run = run_table(n, self.evaluate_every, *saving, seed=self.seed, **travel)
        described = describe_run(method, problem, stop, run, times)
        if self.replicated:
            method = replicated(method, problem)
        return Prepared(problem, times, method, described, self._start(described, planned))

    def _start(self, described: ScriptRun, planned: bool) -> Start:
        """Return what the run starts from; only the manager needs to see the run file."""
        output = None if is_worker() else self._output()
        return plan_script(described, output) if planned else Start(described)

    def _output(self) -> OutputOptions | None:
        earlier = self.warm_start, self.prior_weight, self.any_problem
        return output_options(self.out, self.resume, *earlier, self.accept_changes)

    def limits(self) -> Stop:
        """Return when the run is finished."""
        stop = self.stop or Stop()
        if self.rounds is not None and stop.rounds not in (None, self.rounds):
            raise UsageError(
                f"rounds={self.rounds}, but stop has rounds={stop.rounds}; give only one of them"
            )
        try:
            stop = stop if self.rounds is None else replace(stop, rounds=self.rounds)
        except ValueError as error:
            raise UsageError(one_line(error)) from None
        if stop == Stop():
            raise UsageError(
                "when is the run finished? Give rounds=1000, or limits as in stop=Stop(gap=1e-5)"
            )
        return stop

    def _built_problem(self) -> Problem:
        if not isinstance(self.problem, str):
            return self.problem
        problem: Problem = Component("problem", self.problem_class(), {}).build(seed=self.seed)
        return problem

    def problem_class(self) -> UserClass:
        """Return the class of a problem that is named by its file."""
        file, colon, name = str(self.problem).rpartition(":")
        if not colon or not Path(file).is_file():
            raise UsageError(
                f"problem={self.problem!r} is not FILE.py:CLASS with a file that exists; pass an object, or "
                "name it as in 'my_problem.py:MyProblem'"
            )
        return UserClass("problem", Path(file), name)

    def _fresh_update(self) -> Update:
        """Return a copy of the update: what it remembers of this run must not reach the next."""
        if isinstance(self.update, type) or not callable(self.update):
            raise UsageError(f"update={self.update!r} is no update; use one such as Adam(1e-3) or Plain(0.1)")
        return deepcopy(self.update)
