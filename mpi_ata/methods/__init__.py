"""What a round does with arrivals: one algorithm, one file."""

from mpi_ata.methods.asynchronous import ASGD as ASGD
from mpi_ata.methods.asynchronous import Ringmaster as Ringmaster
from mpi_ata.methods.interface import Method as Method
from mpi_ata.methods.interface import Round as Round
from mpi_ata.methods.map import Map as Map
from mpi_ata.methods.mindflayer import MindFlayer as MindFlayer
from mpi_ata.methods.mvr import RennalaMVR as RennalaMVR
from mpi_ata.methods.own_data import HeterogeneousDataSGD as HeterogeneousDataSGD
from mpi_ata.methods.own_data import Malenia as Malenia
from mpi_ata.methods.rescaled import HeterogeneousDataASGD as HeterogeneousDataASGD
from mpi_ata.methods.rescaled import RescaledASGD as RescaledASGD
from mpi_ata.methods.ringleader import Ringleader as Ringleader
from mpi_ata.methods.sgd import SGD as SGD
