"""Which launcher starts the ranks inside a Slurm job: the only file that decides it."""

import os
import shlex
import shutil
from collections.abc import Sequence

from mpi_ata import launch
from mpi_ata.errors import UsageError
from mpi_ata.launch.library import fault_tolerance, loaded_library
from mpi_ata.layout import ranks_for
from mpi_ata.slurm.commands import mpi_types

LAUNCHER_VARIABLE = "MPI_ATA_LAUNCHER"  # the user's own choice, such as srun --mpi=pmix


def launcher(workers: int | None = None) -> list[str]:
    """Return the command that starts the ranks of this Slurm job, for these workers or all its tasks."""
    ranks = (launch.slurm_tasks() or 1) if workers is None else ranks_for(workers)
    if os.environ.get(LAUNCHER_VARIABLE):
        return [*shlex.split(os.environ[LAUNCHER_VARIABLE]), "-n", str(ranks)]
    offered = mpi_types() if shutil.which("srun") else []
    return choose_launcher(loaded_library().version, offered, find_mpirun(), ranks)


def choose_launcher(library: str, offered: Sequence[str], mpirun: str | None, ranks: int) -> list[str]:
    """Return how to start ranks of an MPI library; a wrong launcher makes every rank a world of its own."""
    gpus_per_rank = "SLURM_GPUS_PER_TASK" in os.environ  # only srun binds GPUs to ranks
    if mpirun is not None and "Open MPI" in library and not (gpus_per_rank and "pmix" in offered):
        # It works with Slurm whichever PMIx either was built with.
        return [mpirun, *fault_tolerance(mpirun), "-n", str(ranks)]
    for name in supported_mpi_types(library):
        if name in offered:
            return srun(name, ranks)
    if mpirun is not None:
        return [mpirun, "-n", str(ranks)]
    raise UsageError(
        f"no launcher for {library or 'this MPI'} was found: there is no mpirun, and srun --mpi offers "
        f"{', '.join(offered) or 'nothing'}; load the module of your MPI, or set {LAUNCHER_VARIABLE}, "
        "such as to srun --mpi=pmix"
    )


def supported_mpi_types(library: str) -> list[str]:
    """Return the types of `srun --mpi` that an MPI library works with, the best first."""
    if "Open MPI" in library:
        return ["pmix"]
    if "CRAY" in library.upper():
        return ["cray_shasta", "pmi2"]
    if "Intel" in library and "I_MPI_PMI_LIBRARY" not in os.environ:
        return []  # it finds Slurm's PMI only through that variable
    return ["pmi2"]


def find_mpirun() -> str | None:
    """Return the MPI's own launcher, if there is one."""
    try:
        return launch.find_mpirun()
    except UsageError:
        return None


def srun(mpi: str, ranks: int) -> list[str]:
    """Return the srun command; a rank that dies does not end the others, where the MPI allows that."""
    args = ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=0", "--ntasks", str(ranks)]
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        args.append(f"--cpus-per-task={cores}")  # newer versions of srun do not inherit it from the job
    return args
