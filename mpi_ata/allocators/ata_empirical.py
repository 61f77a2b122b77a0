"""ATA-Empirical: ATA with confidence widths that follow each worker's own mean."""

import numpy as np

from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.arrays import Array


class ATAEmpirical(LowerBoundAllocator):
    """ATA-Empirical of the paper: `eta` bounds the ratio of Orlicz norm to mean, which has no unit."""

    def __init__(
        self,
        n: int,
        budget: int,
        eta: float = 1.0,
        seed: int = 0,
        overhead: bool = False,
        forget: bool = False,
    ) -> None:
        if not eta > 0:
            raise ValueError(f"{eta=} must be above 0; 1 suits exponential and Gamma times")
        super().__init__(n, budget, seed, overhead, forget)
        self.eta = eta

    def bounds(self) -> Array:
        """Return the mean less eta widths of its own size, or 0: s-hat_i of the paper."""
        means, widths = self.means_and_widths()
        means *= np.maximum(1.0 - self.eta * widths, 0.0)  # (eq. 8)
        return means
