"""The task times of one run, drawn from a law."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.times.laws import Law


@dataclass(frozen=True)
class Change:
    """From `round` on, the times of `workers` are multiplied by `factor`.

    `workers` is a list of indices, or the fraction of all workers that changes, chosen by the seed.
    """

    round: int
    workers: list[int] | float
    factor: float

    def __post_init__(self) -> None:
        require(self.round >= 1, f"round={self.round} must be at least 1, the first round")
        rule = f"factor={self.factor} must be above 0 and finite; above 1 is slower"
        require(0 < self.factor < np.inf, rule)
        if isinstance(self.workers, list):
            rule = "must be a list of one or more different indices, counted from 0"
            require(_are_indices(self.workers), f"workers={self.workers} {rule}")
        else:
            rule = "a list of indices, such as [0, 3], or a fraction of all workers, such as 0.25"
            fraction = isinstance(self.workers, float) and 0 < self.workers <= 1
            require(fraction, f"workers={self.workers} must be {rule}, above 0.0 and at most 1.0")

    def chosen(self, n: int, rng: Generator) -> IntArray:
        """Return which of n workers change; of a fraction, at least one."""
        if isinstance(self.workers, float):
            return rng.choice(n, max(1, round(self.workers * n)), replace=False)
        rule = f"must be indices from 0 to {n - 1}, since there are {n} workers"
        require(max(self.workers) < n, f"workers={self.workers} {rule}")
        return np.array(self.workers)


def _are_indices(workers: list[int]) -> bool:
    """Return whether a list is not empty, and holds nothing but different indices."""
    return (
        bool(workers)
        and all(type(i) is int and i >= 0 for i in workers)
        and len(set(workers)) == len(workers)
    )


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


LONGEST = 1e140  # seconds, so that draws, their sums and their squares stay finite


class DrawnTimes:
    """The task times of one run: a law, a seed, and how many seconds one unit of the law lasts.

    They are keyed by round and task number for all workers at once, worker i taking entry i, so that any
    process can compute any of them, in any order.  `changes` multiply what is drawn, from their rounds on;
    `means` stay those of the law.  Where tasks are not `stoppable`, a stopped one still runs to its end.
    """

    def __init__(
        self,
        law: Law,
        seed: int = 0,
        unit: float = 1.0,
        label: str = "",
        changes: Sequence[Change] = (),
        stoppable: bool = True,
    ) -> None:
        require(unit > 0, f"{unit=} must be above 0 seconds")
        self.n = law.n
        self.label = label or type(law).__name__  # identifies the law in run files
        self.means = law.means * unit
        self.stoppable = stoppable
        self._law, self._unit = law, unit
        self._changes = cumulative_factors(changes, law.n, seed)
        self._factors: Array | None = None  # of that round; None before the first change
        self._streams = Streams(seed, Purpose.TIMES)
        self._round = 0
        self._drawn: dict[int, Array] = {}  # of that round only

    def __call__(self, round: int, number: int) -> Array:
        """Return the seconds that each worker takes for its task of this number in this round."""
        if round != self._round:
            self._round, self._drawn = round, {}
            if self._changes:
                begun = (factors for first, factors in reversed(self._changes) if first <= round)
                self._factors = next(begun, None)
        if number not in self._drawn:
            self._drawn[number] = self._draw(round, number)
        return self._drawn[number]

    def _draw(self, round: int, number: int) -> Array:
        drawn = self._law.draw(self._streams.at(round, number=number)) * self._unit
        return drawn if self._factors is None else drawn * self._factors

    def representable(self) -> bool:
        """Return whether all mean times, before and after each change, are above 0 and far from overflow."""
        with np.errstate(over="ignore", under="ignore"):
            means = [self.means, *(self.means * factors for _, factors in self._changes)]
        return all(bool(np.all((each > 0) & (each < LONGEST))) for each in means)

    def of(self, worker: int, round: int, first: int, count: int) -> list[float]:
        """Return the seconds that one worker takes for `count` tasks, from number `first` on."""
        return [self(round, number).item(worker) for number in range(first, first + count)]
