"""Runs the checks of the contract on the MPI cluster, on four ranks.

Arrays are sent with the header of a message, after it, or through shared memory, as the argument says.
"""

import sys
import traceback

from mpi4py import MPI

from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi import buffers, channel
from mpi_ata.clusters.mpi.manager import MPICluster
from mpi_ata.clusters.mpi.worker import Worker
from tests.clusters import at_once, unstoppable
from tests.clusters.contract import CHECKS, SEED, scene

UNIT = 0.1
WAY = sys.argv[1]


def main() -> int:
    """Return the number of checks that failed, on rank 0."""
    failed = 0
    channel.INLINE = 16 if WAY != "along" else channel.INLINE
    buffers.SMALL_BYTES = 16 if WAY == "shared" else buffers.SMALL_BYTES
    for check in [*CHECKS, *at_once.CHECKS, *unstoppable.CHECKS]:
        comm = MPI.COMM_WORLD.Dup()
        problem, times = scene(UNIT, stoppable=check not in unstoppable.CHECKS)
        if comm.Get_rank() > 0:
            Worker(comm, ClusterSettings(problem, times, SEED)).serve()
            continue
        cluster = MPICluster(comm, ClusterSettings(problem))
        assert bool(cluster.sharing) == (WAY == "shared")
        try:
            check(cluster, UNIT)
            print("passed", check.__name__, flush=True)
        except Exception:
            failed += 1
            print("FAILED", check.__name__, traceback.format_exc(), flush=True)
        finally:
            cluster.close()
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
