"""How long a task takes, where that is drawn instead of measured."""

from mpi_ata.times.drawn import DrawnTimes
from mpi_ata.times.laws import Constant, Exponential, Law, Linear, Mix, Sqrt
from mpi_ata.times.recorded import (
    Lognormal,
    Recorded,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)

__all__ = [
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
