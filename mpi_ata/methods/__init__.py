"""What a round does with arrivals: one algorithm, one file."""

from mpi_ata.methods.asynchronous import ASGD, Ringmaster
from mpi_ata.methods.interface import Method, Round
from mpi_ata.methods.map import Map
from mpi_ata.methods.mindflayer import MindFlayer
from mpi_ata.methods.own_data import HeterogeneousDataSGD, Malenia
from mpi_ata.methods.sgd import SGD

__all__ = [
    "ASGD",
    "SGD",
    "HeterogeneousDataSGD",
    "Malenia",
    "Map",
    "Method",
    "MindFlayer",
    "Ringmaster",
    "Round",
]
