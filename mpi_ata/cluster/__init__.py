"""Where tasks run."""

from mpi_ata.cluster.interface import Arrival, Cluster
from mpi_ata.cluster.place import Place
from mpi_ata.cluster.speeds import Speeds
from mpi_ata.cluster.virtual import VirtualCluster
from mpi_ata.problems import Task

__all__ = ["Arrival", "Cluster", "Place", "Speeds", "Task", "VirtualCluster"]
