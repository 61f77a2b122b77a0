"""A task farm: one function, many items, workers of unequal speed, in a script without a job file.

mpirun -n 5 python jobs/farm.py    # on real ranks: a manager and 4 workers
python jobs/farm.py                # on 4 simulated workers
"""

import numpy as np

import mpi_ata
from mpi_ata import DrawnTimes, Sqrt


def largest_eigenvalue(size: int, seed: int) -> float:
    """What is computed for one item; all ranks must have it, so it is defined above mpi_ata.cluster()."""
    matrix = np.random.default_rng(seed).standard_normal((size, size))
    return float(np.linalg.eigvalsh(matrix + matrix.T)[-1] / np.sqrt(8 * size))


def main() -> None:
    """Compare the eigenvalues of random matrices with Wigner's law, by which the largest tends to 1."""
    sizes = [20] * 50 + [100] * 50
    times = None if mpi_ata.launch.under_launcher() else DrawnTimes(Sqrt(4))
    with mpi_ata.cluster(times=times) as cluster:  # all ranks get here; only the manager gets further
        values = np.array(list(cluster.map(largest_eigenvalue, sizes, range(100))))
        print(f"size 20: {values[:50].mean():.4f}, size 100: {values[50:].mean():.4f}")


main()
