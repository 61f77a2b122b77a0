"""A task farm: one function, many items, workers of unequal speed, in a script without a job file.

python jobs/farm.py                # starts 4 workers
mpirun -n 5 python jobs/farm.py    # the same: a manager and 4 workers
"""

import numpy as np

import mpi_ata


def largest_eigenvalue(size: int, seed: int) -> float:
    """What is computed for one item; workers have it, since it is defined above mpi_ata.cluster()."""
    matrix = np.random.default_rng(seed).standard_normal((size, size))
    return float(np.linalg.eigvalsh(matrix + matrix.T)[-1] / np.sqrt(8 * size))


sizes = [20] * 50 + [100] * 50
with mpi_ata.cluster(workers=4) as cluster:  # all ranks get here; only the manager gets further
    values = np.array(list(cluster.map(largest_eigenvalue, sizes, range(100))))
    print(f"size 20: {values[:50].mean():.4f}, size 100: {values[50:].mean():.4f}; the limit is 1")
