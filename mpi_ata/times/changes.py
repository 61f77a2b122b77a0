"""Speeds that change in mid-run: from a round on, the drawn times of some workers are multiplied."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray
from mpi_ata.randomness import Purpose, Streams


@dataclass(frozen=True)
class Change:
    """From `round` on, the times of `workers` are multiplied by `factor`.

    `workers` is a list of indices, or the fraction of all workers that changes, chosen by the seed.
    """

    round: int
    workers: list[int] | float
    factor: float

    def __post_init__(self) -> None:
        if self.round < 1:
            raise ValueError(f"round={self.round} must be at least 1, the first round")
        if not 0 < self.factor < np.inf:
            raise ValueError(f"factor={self.factor} must be above 0 and finite; above 1 is slower")
        if isinstance(self.workers, list):
            _check_indices(self.workers)
        elif not isinstance(self.workers, float) or not 0 < self.workers <= 1:
            raise ValueError(
                f"workers={self.workers} must be a list of indices, such as [0, 3], or a fraction of all "
                "workers, such as 0.25, above 0.0 and at most 1.0"
            )

    def chosen(self, n: int, rng: Generator) -> IntArray:
        """Return which of n workers change; of a fraction, at least one."""
        if isinstance(self.workers, float):
            return rng.choice(n, max(1, round(self.workers * n)), replace=False)
        if max(self.workers) >= n:
            raise ValueError(
                f"workers={self.workers} must be indices from 0 to {n - 1}, since there are {n} workers"
            )
        return np.array(self.workers)


def _check_indices(workers: list[int]) -> None:
    """Reject lists that are empty, or hold anything but different indices."""
    indices = [i for i in workers if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
    if not workers or len(indices) < len(workers) or len(set(workers)) < len(workers):
        raise ValueError(f"{workers=} must be a list of one or more different indices, counted from 0")


def cumulative_factors(changes: Sequence[Change], n: int, seed: int) -> list[tuple[int, Array]]:
    """Return the rounds at which speeds change, in order, and the factor of each worker from then on."""
    streams = Streams(seed, Purpose.CHANGES)
    chosen = [change.chosen(n, streams.at(change.round, number=j)) for j, change in enumerate(changes)]
    factors, found = np.ones(n), list[tuple[int, Array]]()
    for change, workers in sorted(zip(changes, chosen, strict=True), key=lambda pair: pair[0].round):
        factors = factors.copy()
        with np.errstate(over="ignore", under="ignore"):  # DrawnTimes.representable() says it better
            factors[workers] *= change.factor
        found.append((change.round, factors))
    return found
