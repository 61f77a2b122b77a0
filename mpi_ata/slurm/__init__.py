"""Jobs on Slurm: the batch script, submitting it, what runs inside the Slurm job, and its status."""

from mpi_ata.slurm.batch import Batch, prepare_batch
from mpi_ata.slurm.commands import SlurmUnreachableError
from mpi_ata.slurm.launcher import launcher
from mpi_ata.slurm.resources import Resources
from mpi_ata.slurm.start import run_batch
from mpi_ata.slurm.status import status, status_from_files, stop
from mpi_ata.slurm.submission import Submission, Sweep
from mpi_ata.slurm.submit import submit

__all__ = [
    "Batch",
    "Resources",
    "SlurmUnreachableError",
    "Submission",
    "Sweep",
    "launcher",
    "prepare_batch",
    "run_batch",
    "status",
    "status_from_files",
    "stop",
    "submit",
]
