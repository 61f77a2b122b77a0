"""Opens the ranks of this MPI world as the cluster of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpi_ata.clusters import Cluster, FaultPolicy, VirtualCluster
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError
from mpi_ata.launch import allocated_cores
from mpi_ata.launch.energy import EnergyMeter
from mpi_ata.launch.job_start import take_job_age
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.layout import ranks_for
from mpi_ata.problems import AnyProblem
from mpi_ata.times import DrawnTimes
from mpi_ata.updates import Update

if TYPE_CHECKING:
    from mpi_ata.clusters.manager import MPICluster


@contextmanager
def opened_ranks(
    problem: AnyProblem,
    times: DrawnTimes | None,
    seed: int,
    digest: bytes,
    stop_request: StopRequest,
    policy: FaultPolicy | None = None,
    report_drawn: bool = False,
    exchange: str = "auto",
    update: Update | None = None,
) -> Iterator["MPICluster | None"]:
    """Yield the ranks as a cluster; a worker's rank serves it first, then yields None."""
    from mpi_ata.clusters.world import mpi_cluster

    expired = stop_request.grace_expired
    with (
        set_up_in_time(stop_request),
        mpi_cluster(problem, times, seed, report_drawn, digest, expired, policy, exchange, update) as cluster,
    ):
        if cluster is not None:
            cluster.log_notes(sleeping=times is not None)
        yield cluster


@contextmanager
def set_up_in_time(stop_request: StopRequest) -> Iterator[None]:
    """Raise RunError if a signal comes during setup, and setup does not end within the grace period."""
    try:
        yield
    except GraceExpired:
        raise RunError(f"{stop_request.word} came before all workers were set up: nothing was done") from None


def start_billing(trace: Trace, cluster: Cluster) -> None:
    """Let a trace count elapsed and billed time from the start of the job, and energy; not in a simulation.

    Where a process does several runs, all that came before the first one belongs to the first one.
    """
    if not trace.cores and not isinstance(cluster, VirtualCluster):
        trace.cores = allocated_cores() or ranks_for(cluster.n)
        meter, elsewhere = EnergyMeter(), getattr(cluster, "joules", lambda: 0.0)
        trace.meter = lambda: meter.joules() + elsewhere()
        trace.begin_earlier(take_job_age())
