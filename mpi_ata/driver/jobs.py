"""Several jobs on one set of workers: what one does not use serves the others.

Each job is driven by a thread of its own, in turns, as if it were alone; the main thread decides whose turn
it is.
"""

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mpi_ata.clusters.interface import Cluster, ClusterSettings
from mpi_ata.clusters.sharing import Share, Sharing, SpareUser
from mpi_ata.clusters.virtual import SharedTime, SharedVirtualCluster
from mpi_ata.driver.drive import Drive, Outcome
from mpi_ata.driver.execute import log_notes, settings_of, simulate
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import OutputOptions, Plan, RunStart, resolve
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, RunError, UsageError, describe_error
from mpi_ata.job import Parts, build_parts, load_job
from mpi_ata.job.build import COPIES
from mpi_ata.job.schema import Job, RunDescription
from mpi_ata.job.tables import parse_setting, split_values
from mpi_ata.launch import allocated_cores, host_name, rank
from mpi_ata.launch.environment import take_job_age
from mpi_ata.launch.signals import FollowedStopRequest, GraceExpired, StopRequest
from mpi_ata.layout import MANAGER, ranks_for
from mpi_ata.limits import machine_memory
from mpi_ata.methods import Method, Round
from mpi_ata.methods.interface import MethodAbilities, has_idle_spares, is_greedy
from mpi_ata.runfile.checkpoints import fresh_path
from mpi_ata.runfile.load import summary_of
from mpi_ata.turns import TurnThread

if TYPE_CHECKING:
    from mpi_ata.clusters.mpi.queued import QueuedRanks

log = logging.getLogger("mpi_ata")


def combinations(arrays: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the settings of each member of a sweep: all combinations of table.key=value,value,..."""
    choices = []
    for text in arrays:
        name, _, values = text.partition("=")
        parse_setting(text, "--array")
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
            words = [setting.partition(".")[2].replace("/", "_") for setting in member]
            found.append(JobSpec(path, (*settings, *member), "-".join([path.stem, *words])))
    names = [spec.name for spec in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two of the jobs are called {twice}: give their files different names")
    return found


def resolve_jobs(specs: Sequence[JobSpec], output: OutputOptions) -> list["JobRun"]:
    """Decide what is to be run; each job has a run file of its own in the folder `output.out`."""
    if output.resume and output.out is None:
        raise UsageError("--resume continues runs; name their folder: --out FOLDER --resume")
    folder = output.out or fresh_path(specs[0].path).with_suffix("")
    if folder.is_file() or folder.suffix == ".h5":
        raise UsageError(f"--out {folder}: several jobs need a folder, for a run file each")
    is_new = not folder.exists()
    outs = [replace(output, out=folder / f"{spec.name}.h5") for spec in specs]
    try:
        plans = [resolve(spec.path, spec.settings, own) for spec, own in zip(specs, outs, strict=True)]
        check_modules([plan.job for plan in plans])
    except UsageError:
        if is_new and folder.exists():
            folder.rmdir()
        raise
    return [job_run(spec, plan) for spec, plan in zip(specs, plans, strict=True)]


def check_modules(jobs: Sequence[Job]) -> None:
    """Reject jobs that import different modules of the same name: in one process there is room for one."""
    known: dict[str, tuple[Job, str]] = {}
    for job in jobs:
        for name, text in job.files.items():
            module = name.partition("/")[2]
            other, first = known.setdefault(module, (job, text)) if module else (job, text)
            if first != text:
                way_out = "rename one of them, or run the jobs one after another"
                raise UsageError(f"{other.path} and {job.path} import different files {module}; {way_out}")


def job_run(spec: JobSpec, plan: Plan) -> "JobRun":
    """Return one of several jobs that job files describe."""

    def build(n: int) -> tuple[Parts, ClusterSettings]:
        parts = build_parts(plan.job, n)
        return parts, settings_of(plan.job, parts)

    def simulated(time: SharedTime, share: Share) -> tuple[Parts, SharedVirtualCluster]:
        parts, cluster = simulate(plan, SharedVirtualCluster)
        return parts, cluster.share(time, share)

    return JobRun(spec.name, plan, build, simulated)


def resolve_jobs_on_ranks(specs: Sequence[JobSpec], output: OutputOptions) -> list["JobRun"]:
    """Decide the same on all ranks of this MPI world; only the manager needs to see the run files."""
    from mpi_ata.clusters.mpi.handshake import collective_check
    from mpi_ata.clusters.mpi.world import bcast_text, is_manager, workers_in_world

    runs: list[JobRun] = []
    with collective_check():
        workers_in_world()
        if is_manager():
            runs = resolve_jobs(specs, output)
    settings = json.loads(bcast_text(json.dumps([run.start.job.settings for run in runs])))
    with collective_check():
        plans = zip(specs, settings, strict=True)
        return runs or [job_run(spec, Plan(load_job(spec.path, own))) for spec, own in plans]


@dataclass
class JobRun:
    """One of several jobs, while it runs and afterwards."""

    name: str
    start: RunStart
    build: Callable[[int], tuple[Parts, ClusterSettings]]  # for so many workers; here user code is imported
    simulate: Callable[[SharedTime, Share], tuple[Parts, SharedVirtualCluster]]
    observers: Sequence[Observer] = ()
    trace: Trace = field(default_factory=Trace)
    outcome: Outcome | None = None
    error: str = ""  # why it failed
    memory: float = 0.0  # bytes that it takes on this machine, at least
    share: Share | None = None  # while it runs

    @property
    def state(self) -> str:
        """Return how far it is, in one word."""
        if self.error:
            return "failed"
        if self.start.finished or (self.outcome is not None and self.outcome.reason is not None):
            return "finished"
        if self.outcome is not None:
            return "stopped"
        return "waiting" if self.share is None else "running"

    def summary(self) -> dict[str, Any]:
        """Return the result in plain numbers; None where one is not known."""
        if self.outcome is not None:
            known = self.outcome.summary()
        elif self.start.finished and self.start.earlier is not None and self.start.file is not None:
            known = summary_of(self.start.earlier, self.start.file.path)
        else:
            file = self.start.file
            out = str(file.path) if file is not None and file.path.exists() else None
            known = self.trace.summary() | {"workers": None, "out": out}
        state = "stopped" if self.state == "running" else self.state  # nobody waits for its round
        ended = {"state": state, "error": self.error or None, "finished": state == "finished"}
        return {"name": self.name} | known | ended


class Stage(Protocol):
    """The workers that jobs share, in a simulation or on ranks."""

    sharing: Sharing

    def drive(self, run: JobRun, share: Share, stop_request: StopRequest) -> Outcome:
        """Drive a job to its end; called in its thread."""

    def next(self, running: Sequence[JobRun]) -> JobRun:
        """Wait until one of these jobs can go on, and return it."""

    def new_thread(self, name: str, function: Callable[[], None]) -> TurnThread:
        """Return a thread for a job."""


class SimulatedStage:
    """Simulated workers, on one virtual clock."""

    def __init__(self, n: int, observer: Observer) -> None:
        self.sharing, self._observer = Sharing(n), observer
        self._time = SharedTime(self.sharing)

    def new_thread(self, name: str, function: Callable[[], None]) -> TurnThread:
        """Return a thread for a job; nothing runs beside it, so that all repeats bit for bit."""
        return TurnThread(name, function, parallel=False, on_return=lambda: None)

    def drive(self, run: JobRun, share: Share, stop_request: StopRequest) -> Outcome:
        """Drive a job to its end; called in its thread."""
        parts, cluster = run.simulate(self._time, share)
        check_shareable(parts.method)
        offer_spares(share, cluster, parts.method)
        run.memory = COPIES * _bytes_of(parts.method.x)
        track_regret(run.trace, parts.method, parts.times)
        given = cluster, run.trace, [*run.observers, self._observer], stop_request
        return Drive(run.start, parts.method, parts.problem, *given).outcome()

    def next(self, running: Sequence[JobRun]) -> JobRun:
        """Return the job that can go on first on the virtual clock."""
        while True:
            if self.sharing.spare_users:
                self._time.start_spares()
            times = [run.share.ready_at() for run in running if run.share is not None]
            first = min(times)
            idle = self._time.next_end() if self.sharing.spare_users else math.inf
            self._time.advance(min(first, idle))
            if first <= idle:
                return running[times.index(first)]


class Billing(Observer):
    """Divides the cores that are billed among the jobs that run, by their worker time so far."""

    def __init__(self, runs: Sequence[JobRun], cores: float) -> None:
        self._runs, self._cores = runs, cores

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Divide."""
        self._divide()

    def on_round(self, round: Round, trace: Trace) -> None:
        """Divide again."""
        self._divide()

    def _divide(self) -> None:
        traces = [run.trace for run in self._runs if run.state == "running"]
        worked = sum(trace.worker_time for trace in traces)
        for trace in traces:
            trace.bill(self._cores * (trace.worker_time / worked if worked else 1.0 / len(traces)))


class RankStage:
    """The ranks of this MPI world."""

    def __init__(self, ranks: "QueuedRanks", runs: Sequence[JobRun], observer: Observer) -> None:
        self.sharing, self._ranks, self._runs = ranks.sharing, ranks, runs
        self._noted = False  # whether notes about the ranks were logged
        self._observers = observer, Billing(runs, allocated_cores() or ranks_for(ranks.n))

    def new_thread(self, name: str, function: Callable[[], None]) -> TurnThread:
        """Return a thread for a job, which saves and evaluates while others run."""
        return TurnThread(name, function, parallel=True, on_return=self._wake)

    def _wake(self) -> None:
        self._ranks.returned = True
        self._ranks.wake()

    def drive(self, run: JobRun, share: Share, stop_request: StopRequest) -> Outcome:
        """Drive a job to its end; called in its thread."""
        from mpi_ata.clusters.mpi.manager import SharedMPICluster

        ranks, number = self._ranks, next(i for i, other in enumerate(self._runs) if other is run)
        parts, settings = run.build(ranks.n)
        check_shareable(parts.method)
        workers = sum(rank.host == host_name() for rank in ranks.ranks) - 1
        run.memory = (COPIES * (1 + workers) + ranks.n) * _bytes_of(parts.method.x)
        cluster = SharedMPICluster(ranks, share, number, settings, stop_request.grace_expired)
        offer_spares(share, cluster, parts.method)
        with closing(cluster):
            if not self._noted:
                self._noted = True
                cluster.log_notes(sleeping=parts.times is not None)
            run.trace.begin_earlier(take_job_age())
            track_regret(run.trace, parts.method, parts.times)
            given = cluster, run.trace, [*run.observers, *self._observers], stop_request
            return Drive(run.start, parts.method, parts.problem, *given).outcome()

    def next(self, running: Sequence[JobRun]) -> JobRun:
        """Wait until one of these jobs can go on, and return it."""
        return running[self._ranks.next_job([run.share for run in running if run.share is not None])]


def check_shareable(method: Method) -> None:
    """Reject a method that cannot share workers: one that stops tasks, or keeps all workers busy."""
    abilities = MethodAbilities.of(method)
    if abilities.allocator is None or not abilities.shares_workers:
        rule = "keeps all workers busy, or stops tasks, so that they cannot be shared"
        others = "sgd, rennala-mvr, heterogeneous-data-sgd or map"
        raise UsageError(f"this method {rule}; use {others}, or run the job alone")
    if is_greedy(abilities.allocator):
        rule = "orders more tasks than it uses, but jobs that share workers use all that they order"
        raise UsageError(f"this allocator {rule}; use another one, such as ata-auto, or run the job alone")


def offer_spares(share: Share, cluster: SpareUser, method: Method) -> None:
    """Let idle workers do spare tasks for a job whose allocator asks for that."""
    if (allocator := method.allocator) is not None and has_idle_spares(allocator):
        share.use_spares(cluster)


def simulate_jobs(
    runs: Sequence[JobRun], at_once: int | None = None, observer: Observer | None = None
) -> StopRequest | None:
    """Run several jobs on simulated workers, and return the signal that came; how each ended is in it."""
    workers = {run.start.job.run.workers for run in runs}  # of scripts too
    if len(workers) > 1:
        raise UsageError(
            f"jobs that share workers must have the same number of them, not {sorted(workers, key=str)}"
        )
    if (n := workers.pop()) is None:
        raise UsageError("number of workers not set: set workers in [run], or use --workers")
    with StopRequest(max(run.start.job.run.grace for run in runs)) as stop_request:
        run_in_turns(runs, SimulatedStage(n, observer or Observer()), stop_request, at_once)
    return stop_request


def run_jobs_on_ranks(
    runs: Sequence[JobRun], at_once: int | None = None, observer: Observer | None = None
) -> StopRequest | None:
    """Run several jobs on the ranks of this MPI world; the same on the manager's rank, None on a worker's."""
    from mpi_ata.clusters.mpi.world import queued_ranks, workers_in_world

    n = workers_in_world()
    digest = sha256(b"".join(run.start.job.digest for run in runs)).digest()

    grace = max(run.start.job.run.grace for run in runs)
    stopping = StopRequest(grace, on_ranks=True, is_worker=rank() != MANAGER)
    with stopping as stop_request, queued_ranks(digest, lambda number: runs[number].build(n)[1]) as ranks:
        if ranks is None:
            return None
        run_in_turns(runs, RankStage(ranks, runs, observer or Observer()), stop_request, at_once)
        if stop_request:
            ranks.abort(CONTINUE)
    return stop_request


def run_in_turns(
    runs: Sequence[JobRun], stage: Stage, stop_request: StopRequest, at_once: int | None = None
) -> None:
    """Drive all jobs that are not finished, some at once, until they are, or a signal comes."""
    waiting = deque(run for run in runs if not run.start.finished)
    running: list[JobRun] = []
    admission = Admission(stage, len(waiting), at_once)
    try:
        with stop_request.enforced():
            while running or (waiting and not stop_request):
                if waiting and not stop_request and len(running) < admission.limit(running, waiting[0]):
                    running.append(run := _begin(waiting.popleft(), stage, stop_request))
                else:
                    run = stage.next(running)
                assert run.share is not None
                run.share.thread.take_turn()
                if run.share.thread.over:
                    running.remove(run)
                    run.share.leave()
    except KeyboardInterrupt:  # the second Ctrl-C, which was acknowledged; the latest saves are what is left
        pass
    except GraceExpired:
        log.warning("not waiting for the rounds of %s", ", ".join(run.name for run in running))


class Admission:
    """Says how many jobs may run at once: as many as keep the workers busy, and fit into memory."""

    def __init__(self, stage: Stage, count: int, at_once: int | None) -> None:
        self._sharing, self._count, self._at_once = stage.sharing, count, at_once
        self._warned = False

    def limit(self, running: Sequence[JobRun], following: JobRun) -> int:
        """Return how many jobs may run; after these, `following` would be the next."""
        job, most = following.start.job, self._at_once
        if most is None:
            budget = job.tables.get("allocator", {}).get("budget", 1)
            most = self._sharing.at_once(problem_of(job), budget, self._count)
        largest = max((run.memory for run in running), default=0.0)
        room = int(machine_memory() / largest) if largest else most
        if max(room, 1) < most and not self._warned:
            self._warned = True
            text = "%s jobs run at once, not %s: each takes at least %.1f GB of this machine's memory"
            log.warning(text, max(room, 1), most, largest / 1e9)
        return min(most, max(room, 1))


def _bytes_of(x: Any) -> int:
    size: int = getattr(x, "nbytes", 0)
    return size


def problem_of(job: RunDescription) -> str:
    """Return what jobs have in common whose tasks take equally long on the same worker."""
    tables: dict[str, Any] = job.tables
    times = tables.get("times")
    if isinstance(job, Job) and job.times is not None:  # the seed may say which worker is which machine
        times = job.times.label(job.run.seed)
    return repr((tables["problem"], times))


def _begin(run: JobRun, stage: Stage, stop_request: StopRequest) -> JobRun:
    """Return a job with the thread that will drive it."""
    followed, run.trace = FollowedStopRequest(stop_request), Trace()

    def drive() -> None:
        assert run.share is not None
        try:
            log_notes(run.start)
            run.outcome = stage.drive(run, run.share, followed)
        except (UsageError, RunError) as error:
            run.error = str(error)
        except GraceExpired:
            pass
        except BaseException as error:  # of a thread, which nobody would see
            run.error = describe_error(error)

    thread = stage.new_thread(run.name, drive)
    run.share = Share(stage.sharing, thread, problem_of(run.start.job))
    return run
