"""The names that job files use, and the classes they stand for."""

from collections.abc import Callable
from typing import Any

from mpi_ata.allocators import ATA, GTA, OFTA, UTA, ATAAuto, ATAEmpirical, Bandit, MSync, Proportional
from mpi_ata.methods import ASGD, SGD, HeterogeneousDataSGD, Malenia, Map, MindFlayer, Ringmaster
from mpi_ata.problems import Logistic, Quadratic
from mpi_ata.times import (
    Constant,
    Exponential,
    Linear,
    Mix,
    Sqrt,
    bytedance_ar,
    bytedance_se,
    frontera,
    gpu_generations,
    lonestar6,
    longhorn,
)
from mpi_ata.torch import Cifar100
from mpi_ata.updates import Adam, Momentum, Nesterov, Plain

Names = dict[str, Callable[..., Any]]

ALLOCATORS: Names = {
    "ata": ATA,
    "ata-auto": ATAAuto,
    "ata-empirical": ATAEmpirical,
    "gta": GTA,
    "ofta": OFTA,
    "uta": UTA,
    "m-sync": MSync,
    "bandit": Bandit,
    "proportional": Proportional,
}

MACHINES: Names = {
    "lonestar6": lonestar6,
    "longhorn": longhorn,
    "frontera": frontera,
    "gpu-generations": gpu_generations,
    "bytedance-ar": bytedance_ar,
    "bytedance-se": bytedance_se,
}

LAWS: Names = {
    "constant": Constant,
    "exponential": Exponential,
    "linear": Linear,
    "mix": Mix,
    "sqrt": Sqrt,
    **MACHINES,
}

METHODS: Names = {
    "sgd": SGD,
    "heterogeneous-data-sgd": HeterogeneousDataSGD,
    "malenia": Malenia,
    "asgd": ASGD,
    "ringmaster": Ringmaster,
    "map": Map,
    "mindflayer": MindFlayer,
}

PROBLEMS: Names = {"quadratic": Quadratic, "logistic": Logistic, "cifar100": Cifar100}

UPDATES: Names = {"plain": Plain, "momentum": Momentum, "nesterov": Nesterov, "adam": Adam}
