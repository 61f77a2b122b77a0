"""One call for a whole run: the counterpart of `mpi-ata run` for scripts and notebooks."""

import inspect
import logging
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata import launch
from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array
from mpi_ata.clusters import FaultPolicy
from mpi_ata.driver.drive import Drive, Outcome
from mpi_ata.driver.execute import log_notes, start_billing
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, RunError, UsageError, describe_error, did_you_mean, one_line
from mpi_ata.job.build import bound_update, check_problem, check_simulation, check_workers
from mpi_ata.job.component import ALLOCATORS, UPDATES, Component
from mpi_ata.job.schema import Stop
from mpi_ata.job.tables import Table, Tables, to_toml
from mpi_ata.job.user_code import UserClass
from mpi_ata.methods import SGD
from mpi_ata.problems import Problem
from mpi_ata.runfile.load import Columns, brief, load
from mpi_ata.script.entry import (
    check_arguments,
    end_process,
    entry_point,
    script_path,
    taking,
)
from mpi_ata.script.ranks import (
    NO_SCRIPT,
    Prepared,
    count_workers,
    drawn_times,
    is_worker,
    joined,
    opened,
    shown_progress,
)
from mpi_ata.script.resume import Recording, describe_part, describe_run, plan_script
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Update

AnyAllocator = str | Allocator | Callable[[int], Allocator]
DEFAULT_ALLOCATOR = "ata-auto"  # which has nothing to tune
FUNCTION_OF_N = "pass a function of n, as in allocator=lambda n: UTA(n, budget=8)"
MAX_RUN_SECONDS = 20 * 24 * 3600.0  # of a run that a notebook waits for
log = logging.getLogger("mpi_ata")


def build_allocator(
    chosen: AnyAllocator | None, n: int, budget: int | None, seed: int, times: DrawnTimes | None = None
) -> Allocator:
    """Return the chosen allocator for n workers; reject one for another number or budget."""
    chosen = DEFAULT_ALLOCATOR if chosen is None else chosen
    if isinstance(chosen, str):
        return _named_allocator(chosen, n, budget, seed, times)
    is_built = hasattr(chosen, "allocate") and not isinstance(chosen, type)
    # What it learns in this run must not reach the next.
    allocator: Any = deepcopy(chosen) if is_built else _made_allocator(chosen, n)
    given = getattr(allocator, "n", "no"), getattr(allocator, "budget", "no")
    if given[0] != n or given[1] == "no" or budget not in (None, given[1]):
        raise UsageError(
            f"the allocator is for {given[0]} workers and a budget of {given[1]}, but the run has {n} "
            f"and {budget}; {FUNCTION_OF_N}"
        )
    found: Allocator = allocator
    return found


def _made_allocator(chosen: Any, n: int) -> Any:
    try:
        return chosen(n) if callable(chosen) else None
    except Exception as error:
        why = f"cannot be called with n={n}: {describe_error(error)}"
        raise UsageError(f"allocator={chosen!r} {why}; {FUNCTION_OF_N}") from None


def _named_allocator(name: str, n: int, budget: int | None, seed: int, times: DrawnTimes | None) -> Allocator:
    if name not in ALLOCATORS:
        listed = f"{', '.join(ALLOCATORS)}{did_you_mean(name, ALLOCATORS)}"
        raise UsageError(f"allocator={name!r} is unknown; valid values: {listed}")
    if budget is None:
        raise UsageError("budget is required, for example budget=23")
    known = {"n": n, "budget": budget, "seed": seed} | ({"means": times.means} if times else {})
    accepted = inspect.signature(ALLOCATORS[name]).parameters
    try:
        built: Allocator = ALLOCATORS[name](**{key: known[key] for key in known if key in accepted})
    except (ValueError, TypeError) as error:
        raise UsageError(f"allocator={name!r}: {one_line(error)}") from None
    return built


@dataclass(frozen=True)
class Request(Recording):
    """The arguments of minimize()."""

    problem: Problem | str
    budget: int | None = None
    _: KW_ONLY
    update: Update
    rounds: int | None = None
    stop: Stop | None = None
    allocator: str | Allocator | Callable[[int], Allocator] | None = None
    workers: int | None = None
    times: DrawnTimes | Law | None = None
    seed: int = 0
    evaluate_every: int = 10
    observers: Sequence[Observer] = ()
    progress: bool = True
    grace: float = 20.0
    faults: FaultPolicy | None = None
    exchange: str = "auto"
    comm: Any = None  # of mpi4py: the ranks that take part; None: all

    def prepare(self) -> Prepared:
        """Build the parts of the run, and decide what it starts from; workers do not look at the run file."""
        prepared = self.describe()
        if is_worker():
            return prepared
        return replace(prepared, start=plan_script(prepared.start.job, self.output()))

    def describe(self) -> Prepared:
        """Build the parts of the run, checked, as if it were a new one."""
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
        described = describe_run(method, problem, stop, self.run_table(workers=n), times)
        return Prepared(problem, times, RunStart(described), method)

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
            raise UsageError("no stopping condition: pass rounds=, or stop= as in stop=Stop(gap=1e-5)")
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
            rule = "is not an update; use one such as Adam(1e-3) or Plain(0.1)"
            raise UsageError(f"update={self.update!r} {rule}")
        return deepcopy(self.update)


@dataclass(frozen=True)
class Result:
    """The result of a run; `mpi_ata.load(result.path)` has more of a recorded one."""

    x: Array  # the point
    summary: dict[str, Any]  # rounds, clock, worker_time, loss, finished, ... as `mpi-ata run --json` prints
    history: Columns  # one array per column: round, clock, worker_time, loss, ...; it has to_pandas()
    metrics: Columns  # what the problem's evaluate(x) returned, one array per name, in the rows of `history`
    path: Path | None = None  # the run file, if there is one

    def __repr__(self) -> str:
        return brief(self)


def result_of(outcome: Outcome) -> Result:
    """Return the result of a run that has just ended."""
    metrics = {name: np.array(column) for name, column in outcome.trace.metrics.items()}
    history = Columns(outcome.trace.history())
    return Result(outcome.x, outcome.summary(), history, Columns(metrics), outcome.out)


def saved_result(path: Path, recorded: bool = True) -> Result:
    """Return the result of a run in a run file; without `recorded` the file is not to stay."""
    run = load(path)
    summary = run.summary | {"out": str(path) if recorded else None}
    return Result(run.x, summary, run.history, run.metrics, path if recorded else None)


@entry_point
@taking(Request)
def minimize(request: Request) -> Result | None:
    """Minimize a problem by SGD with `budget` tasks per round, and return the result; None on workers.

    Every rank that mpirun or srun started must call this; rank 0 is the manager.  Without a launcher,
    `workers` starts this script again on that many workers and a manager, and exits with their exit code;
    `times` alone, a law of task times, simulates workers in this process.  With both, tasks on ranks last as
    long as drawn.

    `problem` may be named by its file: "my_problem.py:MyProblem".  `allocator` is a name as in job files, a
    function of the number of workers, or an allocator; by default "ata-auto".  The run ends after `rounds`,
    or at a limit of `stop`.  Other arguments are those of `run` and `cluster`.  A signal ends the run after
    the current round; the script then exits, with code 85 if the run can be resumed.
    """
    if request.workers is not None and script_path() is None and not launch.under_launcher():
        return run_generated_job(request)
    prepared, finished = joined("minimize", request.prepare)
    if finished:
        log_notes(prepared.start)
        return None if prepared.start.file is None else saved_result(prepared.start.file.path)
    trace = Trace()
    with opened(prepared, request.workers, request.grace, request.faults) as (cluster, stop_request):
        if cluster is None:
            return None
        start_billing(trace, cluster)
        track_regret(trace, prepared.method, prepared.times)
        with shown_progress(prepared.start.job, request.progress) as shown:
            given = cluster, trace, [*request.observers, *shown], stop_request
            outcome = Drive(prepared.start, prepared.method, prepared.problem, *given).outcome()
        stop_request.exit_code = CONTINUE if outcome.resumable else 1
    if outcome.reason is None:
        end_process(stop_request)
    return result_of(outcome)


def run_generated_job(request: Request) -> Result:
    """Run what was asked for in a process of its own, which decides what to resume, and return its result."""
    from mpi_ata.batch.submit import output_args

    text = to_toml(job_tables(request, request.describe().start.job.tables))
    with tempfile.TemporaryDirectory(prefix="mpi_ata-") as folder:
        job = Path(folder) / "notebook.toml"
        job.write_text(text)
        asked = request.output()
        out = asked.out or Path(folder) / "run.h5"
        words = ["run", str(job), *output_args(replace(asked, out=out)), "--json"]
        try:
            done = launch.run_command(launch.rank_command(words), timeout=MAX_RUN_SECONDS)
        except KeyboardInterrupt:
            if asked.out is not None:
                log.warning("interrupted; what %s holds is continued with resume=True", out)
            raise
        if done.code not in (0, CONTINUE):
            raise RunError(done.gist().removeprefix("Error: "))
        return saved_result(out, recorded=asked.out is not None)


def job_tables(request: Request, tables: Tables) -> Tables:
    """Return the tables of the job; reject what a job file cannot say."""
    allocator = DEFAULT_ALLOCATOR if request.allocator is None else request.allocator
    if not isinstance(request.problem, str):
        named = "; or name the problem by its file, as in minimize('my_problem.py:MyProblem', workers=4, ...)"
        raise UsageError(NO_SCRIPT.format(request.workers) + named)
    if not isinstance(allocator, str) or request.times is not None or request.faults is not None:
        raise UsageError(
            "in a notebook, minimize() on ranks takes an allocator by name, and neither times nor faults; "
            "save this as SCRIPT.py and use python SCRIPT.py"
        )
    user = request.problem_class()
    return {
        "problem": {"file": str(user.path.resolve()), "class": user.name},
        "method": {"name": "sgd"} | _update_keys(request.update),
        "allocator": {"name": allocator, "budget": request.budget},
        "stop": tables["stop"],
        "run": tables["run"],
    }


def _update_keys(update: Any) -> Table:
    """Return the keys of an update of this package."""
    names = {cls: name for name, cls in UPDATES.items()}
    if type(update) not in names:
        raise UsageError(
            f"in a notebook, update on ranks is one of {', '.join(cls.__name__ for cls in names)}, not "
            f"{type(update).__name__}; save this as SCRIPT.py and use python SCRIPT.py"
        )
    keys = {key: value for key, value in describe_part(update).items() if key != "class"}
    return {"update": names[type(update)]} | keys
