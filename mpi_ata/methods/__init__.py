"""What a round does with arrivals: one algorithm, one file."""

from collections.abc import Callable
from typing import Any

from mpi_ata.methods.asgd import ASGD
from mpi_ata.methods.heterogeneous_data_sgd import HeterogeneousDataSGD
from mpi_ata.methods.interface import Method, Round
from mpi_ata.methods.malenia import Malenia
from mpi_ata.methods.ringmaster import Ringmaster
from mpi_ata.methods.sgd import SGD
from mpi_ata.methods.updates import UPDATES, Plain, Update

__all__ = [
    "ASGD",
    "METHODS",
    "SGD",
    "UPDATES",
    "HeterogeneousDataSGD",
    "Malenia",
    "Method",
    "Plain",
    "Ringmaster",
    "Round",
    "Update",
]

METHODS: dict[str, Callable[..., Any]] = {
    "sgd": SGD,
    "heterogeneous-data-sgd": HeterogeneousDataSGD,
    "malenia": Malenia,
    "asgd": ASGD,
    "ringmaster": Ringmaster,
}
