"""Where tasks run."""

from mpi_ata.clusters.accounts import Ledger, Mark, TaskTimeStats, in_flight
from mpi_ata.clusters.computations import TaskResult
from mpi_ata.clusters.faults import Fault
from mpi_ata.clusters.health import FaultPolicy
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.interface import Arrival, Back, Cluster, Lost
from mpi_ata.clusters.virtual import VirtualCluster
from mpi_ata.problems import Task

__all__ = [
    "Arrival",
    "Back",
    "Cluster",
    "Fault",
    "FaultPolicy",
    "Ledger",
    "Lost",
    "Mark",
    "Task",
    "TaskResult",
    "TaskTimeStats",
    "VirtualCluster",
    "WorkerIdentity",
    "in_flight",
]
