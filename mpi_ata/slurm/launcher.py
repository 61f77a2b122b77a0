"""Which launcher starts the ranks inside of a Slurm job: the one place that decides it."""

import os
import shlex
import shutil
from collections.abc import Sequence

from mpi_ata import launch
from mpi_ata.errors import UsageError
from mpi_ata.launch.library import loaded_library
from mpi_ata.layout import ranks_for
from mpi_ata.slurm.commands import mpi_types

CHOICE = "MPI_ATA_LAUNCHER"  # in the environment: the user's own choice, such as srun --mpi=pmix


def launcher(workers: int | None = None) -> list[str]:
    """The words that start the ranks of this Slurm job: a manager and so many workers, or as many as fit."""
    ranks = (launch.slurm_tasks() or 1) if workers is None else ranks_for(workers)
    if os.environ.get(CHOICE):
        return [*shlex.split(os.environ[CHOICE]), "-n", str(ranks)]
    offered = mpi_types() if shutil.which("srun") else []
    return chosen(loaded_library().version, offered, mpirun(), ranks)


def chosen(library: str, offered: Sequence[str], mpirun: str | None, ranks: int) -> list[str]:
    """How to start ranks of an MPI library; the wrong launcher would make every rank a world of its own."""
    divided = "SLURM_GPUS_PER_TASK" in os.environ  # GPUs, which only srun gives to each rank on its own
    if mpirun is not None and "Open MPI" in library and not (divided and "pmix" in offered):
        return [mpirun, "-n", str(ranks)]  # talks to Slurm by itself, whichever PMIx both were built with
    for name in wanted_types(library):
        if name in offered:
            return srun(name, ranks)
    if mpirun is not None:
        return [mpirun, "-n", str(ranks)]
    raise UsageError(
        f"no launcher for {library or 'this MPI'} was found: there is no mpirun, and srun --mpi offers "
        f"{', '.join(offered) or 'nothing'}; load the module of your MPI, or say how in {CHOICE}, "
        "such as srun --mpi=pmix"
    )


def wanted_types(library: str) -> list[str]:
    """What srun must offer for an MPI library, the best first."""
    if "Open MPI" in library:
        return ["pmix"]
    if "CRAY" in library.upper():
        return ["cray_shasta", "pmi2"]
    if "Intel" in library and "I_MPI_PMI_LIBRARY" not in os.environ:
        return []  # knows Slurm's PMI only where it is told its place
    return ["pmi2"]


def mpirun() -> str | None:
    """The MPI's own launcher, if there is one."""
    try:
        return launch.find_mpirun()
    except UsageError:
        return None


def srun(mpi: str, ranks: int) -> list[str]:
    """Slurm's launcher; a rank that dies ends all, since a round would wait for it for ever."""
    words = ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=1", "--ntasks", str(ranks)]
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        words.append(f"--cpus-per-task={cores}")  # which srun no longer takes from the job by itself
    return words
