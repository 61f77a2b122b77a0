"""The workers of a script: ranks that a launcher started, ranks to be started, or a simulation."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from mpi_ata import launch
from mpi_ata.clusters import Cluster, FaultPolicy, VirtualCluster
from mpi_ata.clusters.farm import Items
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.driver.execute import log_notes, opened_ranks
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import RunStart
from mpi_ata.errors import RunError, StopNow, UsageError, in_users_code, one_line
from mpi_ata.job.build import check_problem, check_sendable
from mpi_ata.job.schema import FARM, RunDescription, RunTable, Stop, short_label
from mpi_ata.launch.environment import OWNER
from mpi_ata.launch.signals import StopRequest, current_stop_request, open_stop_request
from mpi_ata.layout import MANAGER
from mpi_ata.problems import AnyProblem, returns_values
from mpi_ata.script.entry import check_arguments, end_process, entry_point, script_path, taking
from mpi_ata.script.farm_run import recorded_farm
from mpi_ata.script.resume import (
    Recording,
    class_text,
    describe_part,
    describe_point,
    describe_script,
    describe_times,
    plan_script,
)
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.torch.loaders import importing_script

log = logging.getLogger("mpi_ata")

FINISHED = "finished"  # the manager's note that there is nothing left to do
GRACE_SECONDS = 20.0  # that a round of a cluster may still take after a signal, until run() says otherwise
NO_RANKS = (
    "no launcher has started ranks: use mpirun -n 5 python SCRIPT.py, let the script start them with "
    "workers=4, or simulate workers with times=Sqrt(4)"
)
NO_SCRIPT = (
    "workers={0} needs a script that all ranks can run: save this as SCRIPT.py and use python SCRIPT.py, or "
    "simulate workers with times=Sqrt({0})"
)

UNGUARDED = (
    "Error: a process that a task has spawned imports this script, and gets to {} there: put that under "
    'if __name__ == "__main__":, or fork processes instead'
)


def drawn_times(times: DrawnTimes | Law | None, seed: int) -> DrawnTimes | None:
    """Return the task times to be drawn; a law is drawn with the seed of the run, in seconds."""
    if times is None or isinstance(times, DrawnTimes):
        return times
    if isinstance(times, type) or not (hasattr(times, "n") and hasattr(times, "draw")):
        raise UsageError(f"times={times!r} is not a law of task times; use one such as Sqrt(4)")
    keys = describe_part(times)
    try:
        return DrawnTimes(times, seed, label=short_label(f"{keys.pop('class')} {keys} x 1 s"))
    except ValueError as error:
        raise UsageError(one_line(error)) from None


def count_workers(workers: int | None, times: DrawnTimes | None) -> int:
    """Return how many workers there are, or are to be started; reject numbers that disagree."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers} must be at least 1")
    if times is not None and workers not in (None, times.n):
        raise UsageError(f"times are those of {times.n} workers, but workers={workers}: make the two agree")
    if launch.under_launcher():
        return _started_workers(workers, times)
    if times is not None:
        return times.n
    if workers is None:
        raise UsageError(NO_RANKS)
    return workers


def _started_workers(workers: int | None, times: DrawnTimes | None) -> int:
    """Return how many workers a launcher has started: that counts, as it does for a job."""
    from mpi_ata.clusters.mpi.world import workers_in_world

    n = workers_in_world("workers=4")
    if workers is not None and workers != n and not is_worker():
        log.warning("workers=%d does not count here: mpirun started %d and the manager", workers, n)
    if times is not None and times.n != n:
        started = f"but mpirun started {n} and the manager: make the two agree"
        raise UsageError(f"times are those of {times.n} workers, {started}")
    return n


def is_worker() -> bool:
    """Return whether this process is a worker's rank."""
    return launch.under_launcher() and launch.rank() != MANAGER


def start_ranks(workers: int | None) -> None:
    """Run this script on ranks, unless a launcher did, and exit with its code; in a Slurm job on its own."""
    if workers is None or launch.under_launcher():
        return
    if script_path() is None:
        raise UsageError(NO_SCRIPT.format(workers))
    with suppress(AttributeError, ValueError):  # streams that a notebook or a test has replaced
        sys.stdout.flush()
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata.batch.interface import scheduler

        os.chdir(launch.script_folder())
        launch.exec_launcher([*scheduler().launcher(workers), *launch.script_command()])
    launch.start_ranks(workers, launch.script_command(), launch.script_folder())


@dataclass(frozen=True)
class Prepared:
    """What a call has prepared before the ranks meet: the parts of a run, and where it starts."""

    problem: AnyProblem
    times: DrawnTimes | None
    start: RunStart
    method: Any = None  # of minimize and Trainer; a cluster is for any


def joined(name: str, prepare: Callable[[], Prepared]) -> tuple[Prepared, bool]:
    """Prepare a call on all ranks, or in this process alone; return that, and whether the run is finished.

    If it fails on one rank, or differs, all ranks leave, and one says why.
    """
    if importing_script():  # the rank that waits for a loader has the better message
        sys.exit(UNGUARDED.format(name) if os.environ.get(OWNER) == str(os.getppid()) else 2)
    if launch.under_launcher() and current_stop_request() is not None:
        where = "in a task, where workers are" if is_worker() else "while a pool or cluster is open"
        raise UsageError(f"{name} cannot be called {where}; close it first, or use what is open")
    if not launch.under_launcher():
        found = prepare()
        return found, bool(found.start.finished)
    from mpi_ata.clusters.mpi.world import Call, join

    try:
        found = prepare()
        job, finished = found.start.job, FINISHED * bool(found.start.finished)
        call = Call(name, job.digest.hex(), finished, settings=job.text)
    except (UsageError, RunError) as error:
        call = Call(name, failure=str(error))
    except Exception as error:  # the other ranks wait for this one all the same
        call = Call(name, failure=str(in_users_code(f"{name} cannot be started", error)))
    answer = join(call)
    return found, answer.note == FINISHED


@contextmanager
def opened(
    prepared: Prepared, workers: int | None, grace: float, policy: FaultPolicy | None
) -> Iterator[tuple[Cluster | None, StopRequest]]:
    """Start ranks where a launcher has not, and yield them as a cluster, or a simulation, and the signals.

    A worker's rank serves first, then yields None.
    """
    start_ranks(workers)
    times, job, ranks = prepared.times, prepared.start.job, launch.under_launcher()
    is_farm = isinstance(prepared.problem, Items)
    unit = f"the items under way ({grace:g} s at most)" if is_farm else "this round"
    with open_stop_request(grace, ranks, is_worker(), unit) as stop_request:
        log_notes(prepared.start)
        if not ranks:
            assert times is not None
            with closing(VirtualCluster(prepared.problem, times, job.run.seed, policy=policy)) as simulated:
                yield simulated, stop_request
            return
        agreed = job.run.seed, False, job.digest, policy, job.run.exchange
        settings = ClusterSettings(prepared.problem, times, *agreed)
        with opened_ranks(settings, stop_request) as cluster:
            yield cluster, stop_request
            if cluster is not None and stop_request:
                cluster.abort(stop_request.exit_code)


@contextmanager
def shown_progress(run: RunDescription, wanted: bool) -> Iterator[Sequence[Observer]]:
    """Yield what shows the progress of a run on stderr, if that is wanted; notes appear above it."""
    if not wanted:
        yield ()
        return
    from mpi_ata.view.live import RunView  # only the manager needs it

    line = RunView(run, sys.stderr)

    def make_room(record: logging.LogRecord) -> bool:
        line.clear()
        return True

    log.addFilter(make_room)
    try:
        yield [line]
    finally:
        log.removeFilter(make_room)
        line.clear()


@dataclass(frozen=True)
class Opening(Recording):
    """The arguments of cluster()."""

    problem: AnyProblem | None = None
    times: DrawnTimes | Law | None = None
    seed: int = 0
    workers: int | None = None
    faults: FaultPolicy | None = None
    exchange: str = "auto"
    progress: bool = True
    comm: Any = None  # of mpi4py: the ranks that take part; None: all

    def prepare(self) -> Prepared:
        """Return what all ranks must agree on, checked, and what a farm starts from."""
        check_arguments(**vars(self))
        times = drawn_times(self.times, self.seed)
        n = count_workers(self.workers, times)
        table = self.run_table(workers=n, seed=self.seed, exchange=self.exchange)
        if self.problem is None:
            return self._prepare_farm(times, table)
        if given := [field.name for field in fields(Recording) if vars(self)[field.name] != field.default]:
            raise UsageError(
                f"{given[0]} of cluster() is for farms; with a problem, pass it to mpi_ata.run()"
            )
        if returns_values(self.problem):
            check_sendable(self.problem)
        else:
            check_problem(self.problem, Stop())
        tables = {
            "problem": describe_part(self.problem) | describe_point(self.problem.x0),
            "times": describe_times(times),
            "run": {"workers": n, "seed": self.seed, "exchange": self.exchange},
        }
        files = {"problem": class_text(type(self.problem))}
        return Prepared(self.problem, times, RunStart(RunDescription.of_tables(tables, files)))

    def _prepare_farm(self, times: DrawnTimes | None, table: RunTable) -> Prepared:
        """Return a farm; its speeds are of use to others of the same script."""
        if self.faults is not None and self.faults.reissues:
            raise UsageError("faults of a farm have no on_task_error; use map(..., on_error='return')")
        path = script_path()
        own = {"problem": {"class": path.name if path else "notebook"}, "method": FARM}
        described = describe_script(own, Stop(), table, times)
        if is_worker():
            return Prepared(Items(), times, RunStart(described))
        start = plan_script(described, self.output())
        if start.earlier is not None:
            start.earlier.reason = ""  # a script that was finished finds all its results
        return Prepared(Items(), times, start)


@contextmanager
def _farm(prepared: Prepared, found: Cluster, stop_request: StopRequest, progress: bool) -> Iterator[None]:
    """Record a farm while it is used, and let its workers leave; do nothing for other clusters."""
    problem = prepared.problem
    if not isinstance(problem, Items):
        yield
        return
    with (
        shown_progress(prepared.start.job, progress and prepared.start.file is not None) as shown,
        recorded_farm(prepared.start, problem, found, stop_request, shown),
    ):
        yield
        until = time.monotonic() + problem.leaving_seconds()  # a worker may hang, and there is no deadline
        found.grace_expired = lambda: time.monotonic() > until or stop_request.grace_expired()


@entry_point
@taking(Opening)
@contextmanager
def cluster(opening: Opening) -> Iterator[Cluster]:
    """Open a cluster for a loop of your own: all ranks that mpirun or srun started must call this.

    Rank 0 continues as the manager; the others serve it here, and their processes end when it leaves.
    `workers` and `times` are as in minimize(); `faults` says what to do about workers that misbehave,
    `exchange` how x and results travel ("auto", "star", "chain").  If a signal has ended a run, the script
    ends with this block, with exit code 85 if the run can be resumed.

    Without a problem it is a farm: use cluster.map(function, items).  With `out` and `resume`, a script that
    was interrupted finds the results of its first calls in the run file.
    """
    prepared, _ = joined("cluster", opening.prepare)
    problem, faults = prepared.problem, opening.faults
    if isinstance(problem, Items):
        faults = faults or FaultPolicy(deadline=0.0)  # items may take any time
    with opened(prepared, opening.workers, GRACE_SECONDS, faults) as (found, stop_request):
        if found is None:
            sys.exit(0)
        try:
            with _farm(prepared, found, stop_request, opening.progress):
                yield found
        except (StopNow, SystemExit):
            if not stop_request:
                raise
    if stop_request:
        end_process(stop_request)
