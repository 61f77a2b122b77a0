"""Adaptive task allocation over MPI, for workers of unknown, unequal speed."""

import atexit
import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses it too; this is for a plain checkout)
    raise ImportError("mpi_ata needs Python 3.11 or newer, this is %s.%s" % sys.version_info[:2])  # noqa: UP031

from mpi_ata import launch

if launch.under_launcher():
    launch.one_thread_per_rank(os.environ)  # before numpy is imported
    launch.assign_gpus(os.environ)
    launch.hold_signals_of_starter(os.environ)
    launch.terminate_with_rank(os.environ)

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from mpi_ata.launch.environment import COMMANDS
from mpi_ata.version import __version__ as __version__

if TYPE_CHECKING:  # of the modules with *, all public names
    from mpi_ata.allocators import *
    from mpi_ata.arrays import Array as Array
    from mpi_ata.clusters import Arrival as Arrival
    from mpi_ata.clusters import Back as Back
    from mpi_ata.clusters import Cluster as Cluster
    from mpi_ata.clusters import Fault as Fault
    from mpi_ata.clusters import FaultPolicy as FaultPolicy
    from mpi_ata.clusters import Lost as Lost
    from mpi_ata.clusters import TaskResult as TaskResult
    from mpi_ata.clusters import VirtualCluster as VirtualCluster
    from mpi_ata.clusters.mpi.manager import MPICluster as MPICluster
    from mpi_ata.driver.observers import CSVLogger as CSVLogger
    from mpi_ata.driver.observers import MLflowLogger as MLflowLogger
    from mpi_ata.driver.observers import Observer as Observer
    from mpi_ata.driver.observers import TensorBoardLogger as TensorBoardLogger
    from mpi_ata.driver.observers import WandbLogger as WandbLogger
    from mpi_ata.driver.trace import Trace as Trace
    from mpi_ata.errors import ItemError as ItemError
    from mpi_ata.errors import RunError as RunError
    from mpi_ata.errors import UsageError as UsageError
    from mpi_ata.job.schema import Stop as Stop
    from mpi_ata.methods import *
    from mpi_ata.problems import Computation as Computation
    from mpi_ata.problems import Problem as Problem
    from mpi_ata.problems import Quadratic as Quadratic
    from mpi_ata.problems import Task as Task
    from mpi_ata.problems import TwoPoints as TwoPoints
    from mpi_ata.runfile.load import SavedRun as SavedRun
    from mpi_ata.runfile.load import load as load
    from mpi_ata.script.balance import Balance as Balance
    from mpi_ata.script.executor import Executor as Executor
    from mpi_ata.script.minimize import Result as Result
    from mpi_ata.script.minimize import minimize as minimize
    from mpi_ata.script.pool import Pool as Pool
    from mpi_ata.script.ranks import cluster as cluster
    from mpi_ata.script.run import run as run
    from mpi_ata.script.run_jobs import run_jobs as run_jobs
    from mpi_ata.script.trainer import Trainer as Trainer
    from mpi_ata.times import *
    from mpi_ata.torch import TorchProblem as TorchProblem
    from mpi_ata.torch import TorchUpdate as TorchUpdate
    from mpi_ata.updates import *

_NAMES = {  # by module, which is imported when a name is first used: a thousand ranks start at the same time
    "allocators": "ATA ATAAuto ATAEmpirical Allocator Bandit GTA MSync OFTA Proportional UTA",
    "arrays": "Array",
    "clusters": "Arrival Back Cluster Fault FaultPolicy Lost TaskResult VirtualCluster",
    "clusters.mpi.manager": "MPICluster",
    "driver.observers": "CSVLogger MLflowLogger Observer TensorBoardLogger WandbLogger",
    "driver.trace": "Trace",
    "errors": "ItemError RunError UsageError",
    "job.schema": "Stop",
    "methods": (
        "ASGD HeterogeneousDataASGD HeterogeneousDataSGD Malenia Map Method MindFlayer RennalaMVR "
        "RescaledASGD Ringleader Ringmaster Round SGD"
    ),
    "problems": "Computation Problem Quadratic Task TwoPoints",
    "runfile.load": "SavedRun load",
    "script.balance": "Balance",
    "script.executor": "Executor",
    "script.pool": "Pool",
    "script.ranks": "cluster",
    "script.minimize": "Result minimize",
    "script.run": "run",
    "script.run_jobs": "run_jobs",
    "script.trainer": "Trainer",
    "times": (
        "Constant DrawnTimes Exponential Law Linear Lognormal Mix Recorded Sqrt "
        "bytedance_ar bytedance_se frontera gpu_generations lonestar6 longhorn"
    ),
    "torch": "TorchProblem TorchUpdate",
    "updates": "Adam GradientUpdate LMO Momentum Nesterov Plain Update",
}
_MODULES = {name: f"mpi_ata.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [*sorted(_MODULES), "__version__"]


if not TYPE_CHECKING:  # for which unknown names are to stay errors

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'mpi_ata' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _leave_ranks() -> None:
    """Let ranks that wait for this one know that it ends, even if it has made no call that involves them."""
    if COMMANDS not in sys.modules:
        with suppress(Exception):  # there may be no MPI
            from mpi_ata.clusters.mpi.world import leave_world

            leave_world()


if launch.is_script_rank():
    atexit.register(_leave_ranks)
