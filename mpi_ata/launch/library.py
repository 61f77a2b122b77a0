"""The MPI library that mpi4py loads here, and the MPI that an mpirun belongs to."""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mpi_ata.launch.subprocesses import run_command

FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # 1 on ranks that Open MPI lets outlive others
FAST_NETWORKS = (Path("/sys/class/infiniband"), Path("/sys/class/cxi"))  # folders of their devices

# Runs in a child and without MPI_Init, since a broken MPI may end the process that loads it.
PROBE = r"""
import json, mpi4py, re
mpi4py.rc.initialize = False
from mpi4py import MPI
try:
    loaded = re.findall(r"/\S*/lib(?:mpi|mpich|mpi_abi)\.so\S*", open("/proc/self/maps").read())
except OSError:
    loaded = []
print(json.dumps([MPI.Get_library_version().splitlines()[0], loaded[0] if loaded else ""]))
"""


class Library(NamedTuple):
    """Version string and file of the MPI library that mpi4py loads, or why it loads none."""

    version: str = ""
    path: str = ""
    error: str = ""


def loaded_library() -> Library:
    """Return the MPI library that this Python loads."""
    result = run_command([sys.executable, "-c", PROBE])
    try:
        return Library(*json.loads(result.out.splitlines()[-1]))
    except (IndexError, ValueError):
        errors = re.findall(r"^\w*Error\b.*", result.err, re.MULTILINE)
        return Library(error=errors[-1] if errors else result.gist())


def mpi_version(text: str) -> str:
    """Return name and version of an MPI from the output of mpirun --version, empty if unknown."""
    patterns = {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\)\s+(\S+)",
        "MPICH": r"HYDRA.*?Version:\s+(\S+)",
        "Intel MPI": r"Intel\(R\) MPI Library.*?Version\s+(\S+)",
    }
    hits = {name: re.search(pattern, text, re.DOTALL) for name, pattern in patterns.items()}
    return next((f"{name} {hit[1]}" for name, hit in hits.items() if hit), "")


@cache
def fault_tolerance(mpirun: str) -> tuple[str, ...]:
    """Return the options with which this mpirun lets ranks outlive one that dies; Open MPI's, from 5 on.

    Open MPI then uses only its own network code, so there are none on a fast network.
    """
    if any(folder.is_dir() and any(folder.iterdir()) for folder in FAST_NETWORKS):
        return ()
    found = re.match(r"Open MPI (\d+)", mpi_version(run_command([mpirun, "--version"]).out))
    return ("--with-ft", "ulfm") if found is not None and int(found[1]) >= 5 else ()
