"""Which MPI library mpi4py loads here."""

import json
import re
import sys
from typing import NamedTuple

from mpi_ata.launch.command import run_command

# In a child, and without MPI_Init: what goes wrong there may end the process that asks.
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
    """The MPI that mpi4py loads here: its own words, and its file; or why there is none."""

    version: str = ""
    path: str = ""
    error: str = ""


def loaded_library() -> Library:
    """Which MPI a Python like this one loads."""
    answer = run_command([sys.executable, "-c", PROBE])
    try:
        return Library(*json.loads(answer.out.splitlines()[-1]))
    except (IndexError, ValueError):
        errors = re.findall(r"^\w*Error\b.*", answer.err, re.MULTILINE)
        return Library(error=errors[-1] if errors else answer.gist())
