"""The MPI library that mpi4py loads here."""

import json
import re
import sys
from typing import NamedTuple

from mpi_ata.launch.subprocesses import run_command

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
