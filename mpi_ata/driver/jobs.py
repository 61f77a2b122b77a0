"""Several jobs on one set of workers: what one does not use serves the others.

Each job is driven by a thread of its own, in turns, as if it were alone; the main thread decides whose turn it
is.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from mpi_ata.allocators import Allocator
from mpi_ata.clusters.sharing import Share, Sharing
from mpi_ata.clusters.virtual import SharedTime
from mpi_ata.driver.drive import Drive, Outcome
from mpi_ata.driver.execute import log_notes, simulate
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import OutputOptions, Plan, resolve
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError, UsageError, describe_error, prefix_errors
from mpi_ata.job.schema import Job
from mpi_ata.job.tables import parse_setting, split_values
from mpi_ata.launch.signals import FollowedStopRequest, GraceExpired, StopRequest
from mpi_ata.methods import Method
from mpi_ata.methods.interface import MethodAbilities, not_greedy
from mpi_ata.runfile.checkpoints import fresh_path
from mpi_ata.turns import TurnThread

log = logging.getLogger("mpi_ata")


def combinations(arrays: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the settings of each member of a sweep: all combinations of table.key=value,value,..."""
    choices = []
    for text in arrays:
        name, _, values = text.partition("=")
        parse_setting(text)
        choices.append([f"{name.strip()}={value}" for value in split_values(values)])
    return list(product(*choices))


@dataclass(frozen=True)
class JobSpec:
    """One of several jobs as the user names it: its file, what is set in it, and its own name."""

    path: Path
    settings: tuple[str, ...]
    name: str


def specify_jobs(paths: Sequence[Path], settings: Sequence[str], arrays: Sequence[str]) -> list[JobSpec]:
    """Return the jobs of some files, each with all combinations of `arrays`; their names differ."""
    found = []
    for path in paths:
        for member in combinations(arrays):
            words = [setting.rpartition(".")[2].replace("/", "_") for setting in member]
            found.append(JobSpec(path, (*settings, *member), "-".join([path.stem, *words])))
    names = [spec.name for spec in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two of the jobs are called {twice}: give their files different names")
    return found


def resolve_jobs(specs: Sequence[JobSpec], output: OutputOptions) -> list["JobRun"]:
    """Decide what is to be run; each job has a run file of its own in the folder `output.out`."""
    folder = output.out or fresh_path(specs[0].path).with_suffix("")
    if folder.is_file():
        raise UsageError(
            f"{folder} is a file; several jobs need a folder, for a run file each: use --out FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return [
        JobRun(spec.name, resolve(spec.path, spec.settings, replace(output, out=folder / f"{spec.name}.h5")))
        for spec in specs
    ]


@dataclass
class JobRun:
    """One of several jobs, while it runs and afterwards."""

    name: str
    plan: Plan
    trace: Trace = field(default_factory=Trace)
    outcome: Outcome | None = None
    error: str = ""  # why it failed
    share: Share | None = None  # while it runs

    @property
    def state(self) -> str:
        """Return how far it is, in one word."""
        if self.error:
            return "failed"
        if self.plan.finished or (self.outcome is not None and self.outcome.reason is not None):
            return "finished"
        if self.outcome is not None:
            return "stopped"
        return "waiting" if self.share is None else "running"


class Stage(Protocol):
    """The workers that jobs share, in a simulation or on ranks."""

    sharing: Sharing

    def drive(self, run: JobRun, share: Share, stop_request: StopRequest) -> Outcome:
        """Drive a job to its end; called in its thread."""

    def next(self, running: Sequence[JobRun]) -> JobRun:
        """Wait until one of these jobs can go on, and return it."""

    def new_thread(self, name: str, function: Callable[[], None]) -> TurnThread:
        """Return a thread for a job."""


Observe = Callable[[JobRun], Sequence[Observer]]  # returns the observers of a job


class SimulatedStage:
    """Simulated workers, on one virtual clock."""

    def __init__(self, n: int, observe: Observe) -> None:
        self.sharing, self._observe = Sharing(n), observe
        self._time = SharedTime(self.sharing)

    def new_thread(self, name: str, function: Callable[[], None]) -> TurnThread:
        """Return a thread for a job; nothing runs beside it, so that all repeats bit for bit."""
        return TurnThread(name, function, parallel=False, on_return=lambda: None)

    def drive(self, run: JobRun, share: Share, stop_request: StopRequest) -> Outcome:
        """Drive a job to its end; called in its thread."""
        parts, cluster = simulate(run.plan, self._time, share)
        check_shareable(run.plan.job, parts.method)
        track_regret(run.trace, parts.method, parts.times)
        given = cluster, run.trace, self._observe(run), stop_request
        return Drive(run.plan, parts.method, parts.problem, *given).outcome()

    def next(self, running: Sequence[JobRun]) -> JobRun:
        """Return the job that can go on first on the virtual clock."""
        times = [run.share.ready_at() for run in running if run.share is not None]
        first = min(times)
        self._time.advance(first)
        return running[times.index(first)]


def check_shareable(job: Job, method: Method) -> None:
    """Reject a method that cannot share workers: one that stops tasks, or keeps all workers busy."""
    with prefix_errors(f"{job.path}: "):
        abilities = MethodAbilities.of(method)
        allocator: Allocator | None = abilities.allocator
        if allocator is None or abilities.point_per_worker:
            rule = "keeps all workers busy, so nothing is left to be shared"
            raise UsageError(f"this method {rule}; use sgd, heterogeneous-data-sgd or map, or run it alone")
        try:
            not_greedy(allocator, "mpi-ata run for this job alone")
        except ValueError as error:
            raise UsageError(f"jobs that share workers use all that they order: {error}") from None


def simulate_jobs(
    runs: Sequence[JobRun], at_once: int | None = None, observe: Observe = lambda run: ()
) -> None:
    """Run several jobs on simulated workers; how each ended is noted in it."""
    workers = {run.plan.job.run.workers for run in runs}
    if len(workers) > 1:
        raise UsageError(
            f"jobs that share workers must have the same number of them, not {sorted(workers, key=str)}"
        )
    if (n := workers.pop()) is None:
        raise UsageError("number of workers not set: set workers in [run], or use --workers")
    with StopRequest(max(run.plan.job.run.grace for run in runs)) as stop_request:
        run_in_turns(runs, SimulatedStage(n, observe), stop_request, at_once)


def run_in_turns(
    runs: Sequence[JobRun], stage: Stage, stop_request: StopRequest, at_once: int | None = None
) -> None:
    """Drive all jobs that are not finished, some at once, until they are, or a signal comes."""
    waiting = deque(run for run in runs if not run.plan.finished)
    running: list[JobRun] = []
    count = len(waiting)
    try:
        with stop_request.enforced():
            while running or (waiting and not stop_request):
                limit = at_once or _at_once(stage, running, waiting, count)
                while waiting and len(running) < limit and not stop_request:
                    running.append(_begin(waiting.popleft(), stage, stop_request))
                run = stage.next(running)
                assert run.share is not None
                run.share.thread.take_turn()
                if run.share.thread.over:
                    running.remove(run)
    except GraceExpired:  # the latest saves are what is left
        log.warning("%s did not end their rounds in time", ", ".join(run.name for run in running))


def _at_once(stage: Stage, running: Sequence[JobRun], waiting: Sequence[JobRun], count: int) -> int:
    """Return how many jobs should run at once."""
    run = running[0] if running else waiting[0]
    budget = run.plan.job.tables.get("allocator", {}).get("budget", 1)
    return stage.sharing.at_once(problem_of(run.plan.job), budget, count)


def problem_of(job: Job) -> str:
    """Return what jobs have in common whose tasks take equally long on the same worker."""
    tables: dict[str, Any] = job.tables
    return repr((tables["problem"], tables.get("times")))


def _begin(run: JobRun, stage: Stage, stop_request: StopRequest) -> JobRun:
    """Return a job with the thread that will drive it."""
    followed = FollowedStopRequest(stop_request)

    def drive() -> None:
        assert run.share is not None
        try:
            log_notes(run.plan)
            run.outcome = stage.drive(run, run.share, followed)
        except (UsageError, RunError) as error:
            run.error = str(error)
        except GraceExpired:
            pass
        except BaseException as error:  # of a thread, which nobody would see
            run.error = describe_error(error)

    thread = stage.new_thread(run.name, drive)
    run.share = Share(stage.sharing, thread, problem_of(run.plan.job))
    return run
