"""What a round does with arrivals: one algorithm, one file."""

from collections.abc import Callable
from typing import Any

from mpi_ata.methods.asgd import ASGD
from mpi_ata.methods.heterogeneous_data_sgd import HeterogeneousDataSGD
from mpi_ata.methods.interface import Method, Round
from mpi_ata.methods.malenia import Malenia
from mpi_ata.methods.ringmaster import Ringmaster
from mpi_ata.methods.sgd import SGD
from mpi_ata.methods.updates import Adam, Momentum, Nesterov, Plain, Stepping, Update

__all__ = [
    "ASGD",
    "METHODS",
    "SGD",
    "UPDATES",
    "Adam",
    "HeterogeneousDataSGD",
    "Malenia",
    "Method",
    "Momentum",
    "Nesterov",
    "Plain",
    "Ringmaster",
    "Round",
    "Stepping",
    "Update",
]

METHODS: dict[str, Callable[..., Any]] = {
    "sgd": SGD,
    "heterogeneous-data-sgd": HeterogeneousDataSGD,
    "malenia": Malenia,
    "asgd": ASGD,
    "ringmaster": Ringmaster,
}

UPDATES: dict[str, Callable[..., Any]] = {
    "plain": Plain,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adam": Adam,
}
