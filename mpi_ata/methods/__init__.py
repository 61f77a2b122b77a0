"""What a round does with arrivals: one algorithm, one file."""

from mpi_ata.methods.asgd import ASGD
from mpi_ata.methods.heterogeneous_data_sgd import HeterogeneousDataSGD
from mpi_ata.methods.interface import Method, Round
from mpi_ata.methods.malenia import Malenia
from mpi_ata.methods.map import Map
from mpi_ata.methods.mindflayer import MindFlayer
from mpi_ata.methods.ringmaster import Ringmaster
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
