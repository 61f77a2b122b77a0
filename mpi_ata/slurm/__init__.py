"""Jobs on Slurm: the batch script, giving it to Slurm, what runs inside, and how far it is."""

from mpi_ata.slurm.batch import Batch, prepared
from mpi_ata.slurm.commands import SilentError
from mpi_ata.slurm.launcher import launcher
from mpi_ata.slurm.script import Resources, Sweep
from mpi_ata.slurm.start import carry_out
from mpi_ata.slurm.status import status, status_from_files, stop
from mpi_ata.slurm.submit import Submission, submit

__all__ = [
    "Batch",
    "Resources",
    "SilentError",
    "Submission",
    "Sweep",
    "carry_out",
    "launcher",
    "prepared",
    "status",
    "status_from_files",
    "stop",
    "submit",
]
