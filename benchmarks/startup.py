"""The import time of a worker's rank, compared with that of the libraries it needs in any case.

python -m benchmarks.startup
"""

import subprocess
import sys

from benchmarks.measuring import best, options
from mpi_ata.view.text import table

# Initialised without a launcher, Open MPI would leave a file in /dev/shm.
IMPORT_ONLY = "import mpi4py; mpi4py.rc.initialize = False; "
PROGRAMS = {
    "Python alone": "pass",
    "numpy": "import numpy",
    "numpy and mpi4py": f"{IMPORT_ONLY}import numpy, mpi4py.MPI",
    "all that a rank of mpi_ata imports": f"{IMPORT_ONLY}import mpi_ata.cli.runs, mpi_ata.clusters.mpi.world",
}


def seconds(program: str) -> float:
    """Return how long Python takes to run a program, including start and exit."""
    return best(lambda: subprocess.run([sys.executable, "-c", program], check=True), seconds=3.0)


def main() -> None:
    """Print the table."""
    options(__doc__)
    rows = [[name, f"{1000 * seconds(program):.0f}"] for name, program in PROGRAMS.items()]
    print(table(rows, ["imports", "milliseconds"]))


if __name__ == "__main__":
    main()
