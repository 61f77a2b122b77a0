"""Adaptive task allocation over MPI, for workers of unknown, unequal speed."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses it too; this is for a plain checkout)
    raise ImportError("mpi_ata needs Python 3.11 or newer, this is %s.%s" % sys.version_info[:2])  # noqa: UP031

from mpi_ata import launch

if launch.under_launcher():
    launch.one_thread_per_rank(os.environ)  # before numpy is imported
    launch.assign_gpus(os.environ)
    launch.hold_signals_of_starter(os.environ)

from typing import TYPE_CHECKING

from mpi_ata.allocators import (
    ATA,
    GTA,
    OFTA,
    UTA,
    Allocator,
    ATAAuto,
    ATAEmpirical,
    Bandit,
    MSync,
    Proportional,
)
from mpi_ata.arrays import Array
from mpi_ata.clusters import Arrival, Back, Cluster, Fault, FaultPolicy, Lost, TaskResult, VirtualCluster
from mpi_ata.driver.loggers import CSVLogger, MLflowLogger, TensorBoardLogger, WandbLogger
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.stop import Stop
from mpi_ata.launch.rank_process import leave_at_exit
from mpi_ata.methods import (
    ASGD,
    SGD,
    HeterogeneousDataSGD,
    Malenia,
    Map,
    Method,
    MindFlayer,
    Ringmaster,
    Round,
)
from mpi_ata.problems import Computation, Problem, Quadratic, Task
from mpi_ata.runfile.load import SavedRun, load
from mpi_ata.script.balance import Balance
from mpi_ata.script.cluster import cluster
from mpi_ata.script.minimize import minimize
from mpi_ata.script.result import Result
from mpi_ata.script.run import run
from mpi_ata.script.trainer import Trainer
from mpi_ata.times import (
    Constant,
    DrawnTimes,
    Exponential,
    Law,
    Linear,
    Lognormal,
    Mix,
    Recorded,
    Sqrt,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)
from mpi_ata.torch import TorchProblem, TorchUpdate
from mpi_ata.updates import Adam, GradientUpdate, Momentum, Nesterov, Plain, Update
from mpi_ata.version import __version__

if TYPE_CHECKING:
    from mpi_ata.clusters.manager import MPICluster

__all__ = [
    "ASGD",
    "ATA",
    "GTA",
    "OFTA",
    "SGD",
    "UTA",
    "ATAAuto",
    "ATAEmpirical",
    "Adam",
    "Allocator",
    "Array",
    "Arrival",
    "Back",
    "Balance",
    "Bandit",
    "CSVLogger",
    "Cluster",
    "Computation",
    "Constant",
    "DrawnTimes",
    "Exponential",
    "Fault",
    "FaultPolicy",
    "GradientUpdate",
    "HeterogeneousDataSGD",
    "Law",
    "Linear",
    "Lognormal",
    "Lost",
    "MLflowLogger",
    "MPICluster",
    "MSync",
    "Malenia",
    "Map",
    "Method",
    "MindFlayer",
    "Mix",
    "Momentum",
    "Nesterov",
    "Observer",
    "Plain",
    "Problem",
    "Proportional",
    "Quadratic",
    "Recorded",
    "Result",
    "Ringmaster",
    "Round",
    "RunError",
    "SavedRun",
    "Sqrt",
    "Stop",
    "Task",
    "TaskResult",
    "TensorBoardLogger",
    "TorchProblem",
    "TorchUpdate",
    "Trace",
    "Trainer",
    "Update",
    "UsageError",
    "VirtualCluster",
    "WandbLogger",
    "__version__",
    "bytedance_ar",
    "bytedance_se",
    "cluster",
    "frontera",
    "gpu_generations",
    "load",
    "lonestar6",
    "longhorn",
    "minimize",
    "run",
]


def _leave_ranks() -> None:
    from mpi_ata.clusters.calls import leave_world

    leave_world()


leave_at_exit(_leave_ranks)


def __getattr__(name: str) -> object:
    if name == "MPICluster":  # importing mpi4py initialises MPI
        from mpi_ata.clusters.manager import MPICluster

        return MPICluster
    if name == "Stepping":
        import warnings

        warnings.warn(
            "mpi_ata.Stepping is now called mpi_ata.GradientUpdate", DeprecationWarning, stacklevel=2
        )
        return GradientUpdate
    raise AttributeError(f"module 'mpi_ata' has no attribute {name!r}")
