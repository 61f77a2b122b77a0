"""The task times of one run, drawn from a law."""

from collections.abc import Sequence

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.times.changes import Change, cumulative_factors
from mpi_ata.times.laws import Law

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
        if not unit > 0:
            raise ValueError(f"{unit=} must be above 0 seconds")
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
                self._factors = self._factors_in(round)
        if number not in self._drawn:
            self._drawn[number] = self._draw(round, number)
        return self._drawn[number]

    def _draw(self, round: int, number: int) -> Array:
        drawn = self._law.draw(self._streams.at(round, number=number)) * self._unit
        return drawn if self._factors is None else drawn * self._factors

    def _factors_in(self, round: int) -> Array | None:
        begun = [factors for first, factors in self._changes if first <= round]
        return begun[-1] if begun else None

    def representable(self) -> bool:
        """Return whether all mean times, before and after each change, are above 0 and far from overflow."""
        with np.errstate(over="ignore", under="ignore"):
            means = [self.means, *(self.means * factors for _, factors in self._changes)]
        return all(bool(np.all((each > 0) & (each < LONGEST))) for each in means)

    def of(self, worker: int, round: int, first: int, count: int) -> list[float]:
        """Return the seconds that one worker takes for `count` tasks, from number `first` on."""
        return [self(round, number).item(worker) for number in range(first, first + count)]
