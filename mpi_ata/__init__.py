"""Adaptive task allocation over MPI, for workers of unknown, unequal speed."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses it too; this is for a plain checkout)
    raise ImportError("mpi_ata needs Python 3.11 or newer, this is %s.%s" % sys.version_info[:2])  # noqa: UP031

from mpi_ata import launch

if launch.under_launcher():
    launch.one_thread_per_rank(os.environ)  # before numpy is imported
    launch.assign_gpus(os.environ)

from mpi_ata.allocators import ATA, GTA, OFTA, UTA, ATAEmpirical
from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.loop import run
from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop
from mpi_ata.methods import ASGD, SGD, HeterogeneousDataSGD, Malenia, Ringmaster, Round
from mpi_ata.problems import Quadratic, Task
from mpi_ata.times import Constant, DrawnTimes, Exponential, Linear, Mix, Sqrt
from mpi_ata.torch import TorchProblem
from mpi_ata.updates import Adam, GradientUpdate, Momentum, Nesterov, Plain
from mpi_ata.version import __version__

__all__ = [
    "ASGD",
    "ATA",
    "GTA",
    "OFTA",
    "SGD",
    "UTA",
    "ATAEmpirical",
    "Adam",
    "Constant",
    "DrawnTimes",
    "Exponential",
    "GradientUpdate",
    "HeterogeneousDataSGD",
    "Linear",
    "Malenia",
    "Mix",
    "Momentum",
    "Nesterov",
    "Plain",
    "Quadratic",
    "Ringmaster",
    "Round",
    "Sqrt",
    "Stop",
    "Task",
    "TorchProblem",
    "Trace",
    "VirtualCluster",
    "__version__",
    "run",
]


def __getattr__(name: str) -> object:
    if name == "Stepping":
        import warnings

        warnings.warn(
            "mpi_ata.Stepping is now called mpi_ata.GradientUpdate", DeprecationWarning, stacklevel=2
        )
        return GradientUpdate
    raise AttributeError(f"module 'mpi_ata' has no attribute {name!r}")
