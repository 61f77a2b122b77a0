"""The door to workers for scripts: real ranks under mpirun, simulated ones elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from mpi_ata.clusters.health import FaultPolicy
from mpi_ata.clusters.interface import Cluster
from mpi_ata.clusters.items import Items
from mpi_ata.clusters.virtual import VirtualCluster
from mpi_ata.errors import UsageError
from mpi_ata.launch import under_launcher
from mpi_ata.problems import AnyProblem
from mpi_ata.times import DrawnTimes

NO_RANKS = (
    "no launcher has started ranks: use mpirun -n 5 python SCRIPT.py, "
    "or simulate workers with times=DrawnTimes(Sqrt(4))"
)


@contextmanager
def cluster(
    problem: AnyProblem | None = None, times: DrawnTimes | None = None, seed: int = 0
) -> Iterator[Cluster]:
    """Open a cluster for a loop of your own: all ranks that mpirun or srun started must call this.

    Without a problem, it is a farm: use cluster.map(function, items).

    Rank 0 continues as the manager.  All others are workers: they serve the manager here, and their process
    ends when the manager leaves.  With `times`, tasks last as long as drawn; without a launcher, workers are
    simulated.
    """
    policy = FaultPolicy(deadline=0.0) if problem is None else None  # items may take any time
    problem = Items() if problem is None else problem
    if not under_launcher():
        if times is None:
            raise UsageError(NO_RANKS)
        with closing(VirtualCluster(problem, times, seed)) as simulated:
            yield simulated
        return
    from mpi_ata.clusters.world import mpi_cluster, workers_in_world

    n = workers_in_world()
    if times is not None and times.n != n:
        raise UsageError(f"times are those of {times.n} workers, but mpirun started {n}: make the two agree")
    with mpi_cluster(problem, times, seed, report_drawn=False, digest=b"", policy=policy) as ranks:
        if ranks is None:
            sys.exit(0)
        yield ranks
