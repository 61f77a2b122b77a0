"""Where tasks run."""

from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.interface import Arrival, Cluster
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.clusters.virtual import VirtualCluster
from mpi_ata.problems import Task

__all__ = ["Arrival", "Cluster", "Task", "TaskTimeStats", "VirtualCluster", "WorkerIdentity"]
