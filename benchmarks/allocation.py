"""The cost of one decision compared with a full sort of the scores, and how it grows with n and B.

python -m benchmarks.allocation
"""

import numpy as np

from benchmarks.measuring import best, options
from mpi_ata.allocators import ATAEmpirical
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.view.text import table

SIZES = [(17, 23), (51, 23), (459, 23), (459, 2_000), (10_000, 23), (10_000, 1_000), (100_000, 10_000)]
SIZES += [(1_000_000, budget) for budget in (23, 100_000, 1_000_000)]


def measure(n: int, budget: int) -> list[str]:
    """Return a row with the cost of bounds and allocation, of the allocation alone, and of np.sort."""
    rng = np.random.default_rng(1)
    means = rng.uniform(0.1, 1.0, n)
    allocator = ATAEmpirical(n, budget)
    allocator.k, allocator.K[:], allocator.T[:] = 1000, 1000, 1000 * means
    scores, everyone = allocator.bounds(), np.ones(n, np.bool_)
    decision = best(lambda: allocator.allocate(everyone))
    allocation = best(lambda: recursive_allocation(scores, budget))
    sort = best(lambda: np.sort(scores))
    cells = [f"{1e6 * seconds:,.1f}" for seconds in (decision, allocation, sort)]
    return [f"{n:,}", f"{budget:,}", *cells, f"{decision / sort:.1f}"]


def main() -> None:
    """Print the table."""
    options(__doc__)
    header = ["n", "B", "decision [us]", "allocation [us]", "np.sort [us]", "decision / sort"]
    print(table([measure(n, budget) for n, budget in SIZES], header))


if __name__ == "__main__":
    main()
