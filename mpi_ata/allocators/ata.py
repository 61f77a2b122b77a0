"""ATA, Adaptive Task Allocation."""

import numpy as np

from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.arrays import Array


class ATA(LowerBoundAllocator):
    """Algorithm ATA of the paper: one bound `alpha` on the Orlicz norms of all workers' times."""

    def __init__(
        self, n: int, budget: int, alpha: float, seed: int = 0, overhead: bool = False, forget: bool = False
    ) -> None:
        if not alpha > 0:
            raise ValueError(f"{alpha=} must be above 0, in the unit of the task times")
        super().__init__(n, budget, seed, overhead, forget)
        self.alpha = alpha

    def bounds(self) -> Array:
        """Return the mean minus alpha widths, at least 0: s_i of the paper."""
        means, widths = self.means_and_widths()
        return np.maximum(means - self.alpha * widths, 0.0)  # (eq. 7)
