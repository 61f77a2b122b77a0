"""How long a task takes, where that is drawn instead of measured."""

from mpi_ata.times.changes import Change
from mpi_ata.times.drawn import DrawnTimes
from mpi_ata.times.laws import Constant, Exponential, Law, Linear, Mix, Sqrt
from mpi_ata.times.real import (
    Lognormal,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)
from mpi_ata.times.recorded import Recorded

__all__ = [
    "Change",
    "Constant",
    "DrawnTimes",
    "Exponential",
    "Law",
    "Linear",
    "Lognormal",
    "Mix",
    "Recorded",
    "Sqrt",
    "bytedance_ar",
    "bytedance_se",
    "frontera",
    "gpu_generations",
    "lonestar6",
    "longhorn",
]
