"""Who does how many tasks: one algorithm, one file; numpy only, no MPI, no clock."""

from mpi_ata.allocators.ata import ATA
from mpi_ata.allocators.ata_auto import ATAAuto
from mpi_ata.allocators.ata_empirical import ATAEmpirical
from mpi_ata.allocators.bandit import Bandit
from mpi_ata.allocators.gta import GTA
from mpi_ata.allocators.interface import Allocator
from mpi_ata.allocators.m_sync import MSync
from mpi_ata.allocators.ofta import OFTA
from mpi_ata.allocators.proportional import Proportional
from mpi_ata.allocators.uta import UTA

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
