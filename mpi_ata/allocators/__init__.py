"""Who does how many tasks: one algorithm, one file; numpy only, no MPI, no clock."""

from mpi_ata.allocators.ata import ATA, ATAEmpirical
from mpi_ata.allocators.auto import ATAAuto
from mpi_ata.allocators.baselines import Bandit, MSync, Proportional
from mpi_ata.allocators.fixed import GTA, OFTA, UTA
from mpi_ata.allocators.interface import Allocator

__all__ = [
    "ATA",
    "GTA",
    "OFTA",
    "UTA",
    "ATAAuto",
    "ATAEmpirical",
    "Allocator",
    "Bandit",
    "MSync",
    "Proportional",
]
