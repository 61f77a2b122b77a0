"""What is there to run jobs with, and what to mend: one finding a line."""

from collections.abc import Iterator

from mpi_ata import launch
from mpi_ata.doctor import machine
from mpi_ata.doctor.exchange import MEND_FIRST, meeting, tiny_job, world
from mpi_ata.doctor.finding import Finding
from mpi_ata.doctor.library import launcher, library_finding, wheels
from mpi_ata.launch.library import loaded_library

__all__ = ["Finding", "examine", "meeting"]


def examine() -> Iterator[Finding]:
    """Every finding in turn, the slow one last; under a launcher all ranks must ask for the last."""
    loaded = loaded_library()
    library, mpirun = library_finding(loaded), launcher(loaded)
    yield from (machine.python(), machine.package(), library, wheels(), mpirun, world())
    yield from (machine.cores(), machine.threads(), machine.doorbell())
    yield from (machine.shared_memory(), machine.output_folder(), machine.slurm())
    if launch.under_launcher():
        yield meeting(loaded)
    elif library.ok and mpirun.ok:
        yield tiny_job()
    else:
        yield Finding("exchange", "not tried", False, MEND_FIRST)
