"""How long a task takes, where that is drawn instead of measured."""

from mpi_ata.times.changes import Change
from mpi_ata.times.drawn import DrawnTimes
from mpi_ata.times.laws import Constant, Exponential, Law, Linear, Mix, Sqrt

__all__ = ["Change", "Constant", "DrawnTimes", "Exponential", "Law", "Linear", "Mix", "Sqrt"]
