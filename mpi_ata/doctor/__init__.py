"""Checks of everything that jobs need to run, each with one finding."""

from collections.abc import Iterator

from mpi_ata import launch
from mpi_ata.doctor import checks
from mpi_ata.doctor.checks import Finding
from mpi_ata.doctor.on_ranks import FIX_MPI_FIRST, exchange_on_ranks, tiny_job, world
from mpi_ata.launch.mpirun import loaded_library

__all__ = ["Finding", "examine", "exchange_on_ranks"]


def examine() -> Iterator[Finding]:
    """Yield all findings, the slow one last; under a launcher all ranks must take part in that one."""
    loaded = loaded_library()
    library, mpirun = checks.library_finding(loaded), checks.launcher(loaded)
    yield from (checks.python(), checks.package(), library, checks.wheels(), mpirun, checks.dead_workers())
    yield from (world(), checks.cores(), checks.threads(), checks.doorbell())
    yield from (checks.shared_memory(), checks.output_folder(), checks.slurm())
    if launch.under_launcher():
        yield exchange_on_ranks(loaded)
    elif library.ok and mpirun.ok:
        yield tiny_job()
    else:
        yield Finding("exchange", "not tried", False, FIX_MPI_FIRST)
