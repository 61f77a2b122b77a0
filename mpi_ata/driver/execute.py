"""Runs a plan from start to end: on the virtual cluster, or on the ranks of this MPI world."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from mpi_ata.clusters import Cluster, VirtualCluster
from mpi_ata.clusters.interface import ClusterAbilities, ClusterSettings
from mpi_ata.clusters.network import traffic_of
from mpi_ata.driver.drive import Drive, Outcome
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import Plan, RunStart
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, RunError, UsageError, prefix_errors
from mpi_ata.job import Job, Parts, build_parts
from mpi_ata.job.build import check_simulation, fault_policy
from mpi_ata.launch import allocated_cores, rank
from mpi_ata.launch.environment import take_job_age
from mpi_ata.launch.signals import GraceExpired, SecondCtrlC, StopRequest
from mpi_ata.layout import MANAGER, ranks_for

if TYPE_CHECKING:
    from mpi_ata.clusters.mpi.manager import MPICluster


Simulated = TypeVar("Simulated", bound=VirtualCluster)


@contextmanager
def opened_ranks(settings: ClusterSettings, stop_request: StopRequest) -> Iterator["MPICluster | None"]:
    """Yield the ranks as a cluster; a worker's rank serves it first, then yields None."""
    from mpi_ata.clusters.mpi.world import mpi_cluster

    with ExitStack() as stack:
        with set_up_in_time(stop_request):
            cluster = stack.enter_context(mpi_cluster(settings, stop_request.grace_expired))
        if cluster is not None:
            cluster.log_notes(sleeping=settings.times is not None)
        yield cluster


@contextmanager
def set_up_in_time(stop_request: StopRequest) -> Iterator[None]:
    """Raise RunError if a signal ends setup: a second Ctrl-C, or one that came before the grace period."""
    try:
        yield
    except (GraceExpired, SecondCtrlC):
        raise RunError(f"{stop_request.word} received during set-up; nothing was computed") from None


def start_billing(trace: Trace, cluster: Cluster) -> None:
    """Let a trace count elapsed and billed time from the start of the job; not in a simulation.

    Where a process does several runs, all that came before the first one belongs to the first one.
    """
    if not trace.cores and not ClusterAbilities.of(cluster).simulated:
        trace.cores = allocated_cores() or ranks_for(cluster.n)
        trace.begin_earlier(take_job_age())


log = logging.getLogger("mpi_ata")


def execute(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome:
    """Run a plan on the virtual cluster; a signal ends it early, with what was reached."""
    trace = Trace()
    with StopRequest(plan.job.run.grace) as stop_request:
        log_notes(plan)
        with set_up_in_time(stop_request), stop_request.enforced():
            parts, cluster = simulate(plan, VirtualCluster)
        track_regret(trace, parts.method, parts.times)
        given = cluster, trace, observers, stop_request
        return Drive(plan, parts.method, parts.problem, *given).outcome()


def simulate(plan: Plan, kind: type[Simulated]) -> tuple[Parts, Simulated]:
    """Return the parts of a run, and a virtual cluster of this kind on which they run."""
    parts = build_parts(plan.job)
    with prefix_errors(f"{plan.job.path}: "):
        if parts.times is None:
            raise UsageError("a virtual clock needs a table [times], which says how long tasks take")
        check_simulation(parts.method, parts.times.n)
        job = plan.job
        can_be_late = "faults" in job.tables or (job.times is not None and job.times.changes)
        policy = fault_policy(job, parts.method) if can_be_late else None
        way = job.run.exchange
        overhead = None if job.network is None else traffic_of(parts.problem, job.network, way)
        return parts, kind(parts.problem, parts.times, job.run.seed, policy=policy, overhead=overhead)


def execute_on_ranks(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome | None:
    """Run a plan on the ranks of this MPI world; on a worker's rank there is no outcome."""
    from mpi_ata.clusters.mpi.handshake import collective_check
    from mpi_ata.clusters.mpi.world import workers_in_world

    job, trace = plan.job, Trace()
    with StopRequest(job.run.grace, on_ranks=True, is_worker=rank() != MANAGER) as stop_request:
        log_notes(plan)
        if job.network is not None:
            log.warning("[network] only applies to simulations; ignored here")
        with collective_check():
            parts = build_parts(job, workers_in_world())
        with opened_ranks(settings_of(job, parts), stop_request) as cluster:
            if cluster is None:
                return None
            if job.run.workers not in (None, cluster.n):
                text = "workers = %s was requested, but this MPI world has %s and the manager: using those"
                log.warning(text, job.run.workers, cluster.n)
            start_billing(trace, cluster)
            track_regret(trace, parts.method, parts.times)
            given = cluster, trace, observers, stop_request
            outcome = Drive(plan, parts.method, parts.problem, *given).outcome()
            if outcome.reason is None:
                cluster.abort(CONTINUE if outcome.resumable else 1)
            return outcome


def settings_of(job: Job, parts: Parts) -> ClusterSettings:
    """Return what a job asks of the ranks that work for it."""
    drawn = job.times is not None and job.times.report == "drawn"
    asked = job.run.seed, drawn, job.digest, fault_policy(job, parts.method), job.run.exchange
    return ClusterSettings(parts.problem, parts.times, *asked)


def log_notes(plan: RunStart) -> None:
    """Log what the user should know before a run starts."""
    for text in plan.notes:
        log.warning("%s", text)
    if plan.finished and plan.file:
        text = "%s is already finished, at %s; to continue, give it another limit"
        log.warning(text, plan.file.path, plan.finished)
