"""Ranks whose tasks share a sequence: prints how often each of its numbers was used."""

import json
import sys

import numpy as np

import mpi_ata
from mpi_ata.arrays import Array

NUMBERS, BUDGET, ROUNDS = 60, 6, 8


class Counting:
    """A problem whose results count the numbers that were drawn."""

    shares_draws = True
    x0 = np.zeros(NUMBERS)

    def gradient(self, x: Array, task: mpi_ata.Task) -> Array:
        """Return -1 at the place of the drawn number."""
        result = np.zeros(NUMBERS)
        if task.index is not None:
            result[task.index] = -BUDGET
        return result


def main() -> None:
    """Print which numbers were used, with the quotas of an allocator."""
    with mpi_ata.cluster(Counting()) as cluster:
        allocator = {"uta": mpi_ata.UTA, "gta": mpi_ata.GTA}[sys.argv[1]](cluster.n, BUDGET)
        method = mpi_ata.SGD(Counting.x0, allocator, mpi_ata.Plain(1.0))
        for _ in range(ROUNDS):
            method.step(cluster)
        print(json.dumps(np.rint(method.x).astype(int).tolist()))


if __name__ == "__main__":
    main()
