"""Checks of everything that jobs need to run, each with one finding."""

from collections.abc import Iterator

from mpi_ata import launch
from mpi_ata.doctor import machine
from mpi_ata.doctor.exchange import FIX_MPI_FIRST, exchange_on_ranks, tiny_job, world
from mpi_ata.doctor.finding import Finding
from mpi_ata.doctor.library import dead_workers, launcher, library_finding, wheels
from mpi_ata.launch.library import loaded_library

__all__ = ["Finding", "examine", "exchange_on_ranks"]


def examine() -> Iterator[Finding]:
    """Yield all findings, the slow one last; under a launcher all ranks must take part in that one."""
    loaded = loaded_library()
    library, mpirun = library_finding(loaded), launcher(loaded)
    yield from (machine.python(), machine.package(), library, wheels(), mpirun, dead_workers(), world())
    yield from (machine.cores(), machine.threads(), machine.doorbell())
    yield from (machine.shared_memory(), machine.output_folder(), machine.slurm())
    if launch.under_launcher():
        yield exchange_on_ranks(loaded)
    elif library.ok and mpirun.ok:
        yield tiny_job()
    else:
        yield Finding("exchange", "not tried", False, FIX_MPI_FIRST)
