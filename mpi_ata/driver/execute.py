"""Runs a plan from start to end: on the virtual cluster, or on the ranks of this MPI world."""

import logging
from collections.abc import Sequence

from mpi_ata.clusters import Cluster, VirtualCluster
from mpi_ata.clusters.network import traffic_of
from mpi_ata.driver.drive import Drive, Outcome
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.opening import opened_ranks, set_up_in_time, start_billing
from mpi_ata.driver.plan import Plan, Start
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, UsageError
from mpi_ata.job import Job, Parts
from mpi_ata.job.build import fault_policy, replicated_update
from mpi_ata.job.demand import check_simulation
from mpi_ata.job.schema import prefix_errors
from mpi_ata.launch import rank
from mpi_ata.launch.signals import StopRequest
from mpi_ata.layout import MANAGER

__all__ = ["Outcome", "execute", "execute_on_ranks"]

log = logging.getLogger("mpi_ata")


def execute(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome:
    """Run a plan on the virtual cluster; a signal ends it early, with what was reached."""
    trace = Trace()
    with StopRequest(plan.job.run.grace) as stop_request:
        log_notes(plan)
        with set_up_in_time(stop_request), stop_request.enforced():
            parts, cluster = _simulated(plan)
        return _drive(plan, parts, cluster, trace, observers, stop_request).outcome()


def _simulated(plan: Plan) -> tuple[Parts, VirtualCluster]:
    """Return the parts of a run, and the virtual cluster on which they run."""
    parts = plan.parts()
    with prefix_errors(plan.job.path):
        if parts.times is None:
            raise UsageError("a virtual clock needs a table [times], which says how long tasks take")
        check_simulation(parts.method, parts.times.n)
        job = plan.job
        can_be_late = "faults" in job.tables or (job.times is not None and job.times.changes)
        policy = fault_policy(job, parts.method) if can_be_late else None
        travel = job.run.exchange, job.run.replicated
        overhead = None if job.network is None else traffic_of(parts.problem, job.network, *travel)
        return parts, VirtualCluster(
            parts.problem, parts.times, job.run.seed, policy=policy, overhead=overhead
        )


def execute_on_ranks(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome | None:
    """Run a plan on the ranks of this MPI world; on a worker's rank there is no outcome."""
    from mpi_ata.clusters.world import collective_check, workers_in_world

    job, trace = plan.job, Trace()
    with StopRequest(job.run.grace, on_ranks=True, is_worker=rank() != MANAGER) as stop_request:
        log_notes(plan)
        if job.network is not None:
            log.warning("[network] counts in simulations alone: these ranks have a network of their own")
        with collective_check():
            parts = plan.parts(workers_in_world())
        drawn = job.times is not None and job.times.report == "drawn"
        policy = fault_policy(job, parts.method)
        update = replicated_update(parts.method)
        given = job.run.seed, job.digest, stop_request, policy, drawn, job.run.exchange, update
        with opened_ranks(parts.problem, parts.times, *given) as cluster:
            if cluster is None:
                return None
            _check_size(job, cluster.n)
            start_billing(trace, cluster)
            outcome = _drive(plan, parts, cluster, trace, observers, stop_request).outcome()
            if outcome.reason is None:
                cluster.abort(CONTINUE if outcome.resumable else 1)
            return outcome


def _check_size(job: Job, n: int) -> None:
    if job.run.workers not in (None, n):
        log.warning("workers = %s was requested, but this MPI world has %s: using those", job.run.workers, n)


def _drive(
    plan: Plan,
    parts: Parts,
    cluster: Cluster,
    trace: Trace,
    observers: Sequence[Observer],
    stop_request: StopRequest,
) -> Drive:
    track_regret(trace, parts.method, parts.times)
    return Drive(plan, parts.method, parts.problem, cluster, trace, observers, stop_request)


def log_notes(plan: Start) -> None:
    """Log what the user should know before a run starts."""
    for text in plan.notes:
        log.warning("%s", text)
    if plan.finished and plan.file:
        text = "%s is already finished, at %s; to continue, give it another limit"
        log.warning(text, plan.file.path, plan.finished)
