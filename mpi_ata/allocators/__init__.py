"""Who does how many tasks: one algorithm, one file; numpy only, no MPI, no clock."""

from mpi_ata.allocators.ata import ATA as ATA
from mpi_ata.allocators.ata import ATAEmpirical as ATAEmpirical
from mpi_ata.allocators.auto import ATAAuto as ATAAuto
from mpi_ata.allocators.baselines import Bandit as Bandit
from mpi_ata.allocators.baselines import MSync as MSync
from mpi_ata.allocators.baselines import Proportional as Proportional
from mpi_ata.allocators.fixed import GTA as GTA
from mpi_ata.allocators.fixed import OFTA as OFTA
from mpi_ata.allocators.fixed import UTA as UTA
from mpi_ata.allocators.interface import Allocator as Allocator
