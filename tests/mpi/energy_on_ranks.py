"""Five ranks that take themselves for three nodes, each with energy counters in a folder of its own.

Each task uses one joule.  Prints the number of tasks and the energy of the run.
"""

import json
import os
import sys
from pathlib import Path

HOSTS = ("localhost", "localhost", "127.0.0.2", "127.0.0.2", "127.0.0.3")  # by rank
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["SLURMD_NODENAME"] = HOSTS[RANK]

import mpi_ata  # noqa: E402  (it reads the name of this node)
from mpi_ata.arrays import Array  # noqa: E402
from mpi_ata.launch import energy  # noqa: E402

FOLDER = Path(sys.argv[1])
energy.SYSTEM = FOLDER / HOSTS[RANK]
COUNTER = energy.SYSTEM / f"class/powercap/intel-rapl:{RANK}/energy_uj"


class Hungry(mpi_ata.Quadratic):
    """Uses one joule for each task."""

    def gradient(self, x: Array, task: mpi_ata.Task) -> Array:
        """Count up this rank's own processor, in one step, since others read the file meanwhile."""
        if COUNTER.exists():
            new = COUNTER.with_suffix(".new")
            new.write_text(str(int(COUNTER.read_text()) + 1_000_000))
            new.replace(COUNTER)
        return super().gradient(x, task)


result = mpi_ata.minimize(Hungry(5), 8, update=mpi_ata.Plain(0.1), rounds=20, allocator="uta")
if result is not None:
    print(json.dumps([result.summary["tasks_used"], result.summary["energy"]]))
