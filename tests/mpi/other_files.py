"""A world in which rank 2 has other files than the rest."""

from mpi4py import MPI

from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.world import mpi_cluster
from tests.clusters.contract import scene

problem, times = scene(0.01)
digest = b"other" if MPI.COMM_WORLD.Get_rank() == 2 else b"same"
with mpi_cluster(ClusterSettings(problem, times, digest=digest)) as cluster:
    raise SystemExit("nobody noticed")
