"""The bandit that picks the fastest workers and gives them equal shares."""

import numpy as np
from numpy.random import Generator

from mpi_ata.allocators.ata_empirical import ATAEmpirical
from mpi_ata.allocators.m_sync import checked_count
from mpi_ata.allocators.recursive import spread
from mpi_ata.arrays import Array, IntArray


class Bandit(ATAEmpirical):
    """Equal shares for the workers whose lower confidence bounds are least, `picks` of them.

    M. Egger, R. Bitar, A. Wachter-Zeh, D. Gündüz: Cost-Efficient Distributed Learning via Combinatorial
    Multi-Armed Bandits (2022), arXiv 2202.08302.  There a picked worker does one task, and the number of
    picks grows during a run.  Here it is fixed, since a round always needs `budget` tasks: half of the
    workers unless given, and at most the budget.  The bounds are those of ATA-Empirical, so that the two
    differ in nothing but the quotas.
    """

    def __init__(
        self,
        n: int,
        budget: int,
        picks: int | None = None,
        eta: float = 1.0,
        seed: int = 0,
        overhead: bool = False,
        forget: bool = False,
    ) -> None:
        super().__init__(n, budget, eta, seed, overhead, forget)
        self.picks = checked_count(n, "picks", min(budget, (n + 1) // 2) if picks is None else picks)

    def divide(self, bounds: Array, rng: Generator | None) -> IntArray:
        """Return equal shares for those with the least bounds; of equal ones, those tried least often.

        The remainder goes to the least bounds.
        """
        count = min(self.picks, self.budget, np.count_nonzero(bounds < np.inf))
        return spread(np.lexsort((self.K, bounds))[:count], self.n, self.budget)
