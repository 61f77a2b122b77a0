"""Recorded rounds, replayed: each worker's tasks and orders take what they took when they were recorded."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.times.drawn import DrawnTimes
from mpi_ata.times.laws import Law

BLOCK = 10  # rounds that are resampled together: what slows one down often slows the next ones too


class Sequences:
    """One sequence of values for each of some workers, in the order of the recorded rounds.

    `keys` are worker * rounds + round of each value, in increasing order.
    """

    def __init__(self, rounds: int, keys: IntArray, values: Array, workers: IntArray) -> None:
        self._rounds, self._keys, self._values, self._workers = rounds, keys, values, workers
        self._first = np.searchsorted(keys, workers * rounds)
        self.counts: IntArray = np.searchsorted(keys, (workers + 1) * rounds) - self._first

    def only(self, chosen: IntArray) -> "Sequences":
        """Return the sequences of some workers."""
        return Sequences(self._rounds, self._keys, self._values, self._workers[chosen])

    def changed(self, change: Callable[[int, Array], Array]) -> "Sequences":
        """Return the sequences that a function makes of each worker's."""
        values = self._values.copy()
        for i in np.flatnonzero(self.counts).tolist():
            own = slice(self._first[i], self._first[i] + self.counts[i])
            values[own] = change(i, values[own])
        return Sequences(self._rounds, self._keys, values, self._workers)

    def at(self, row: int, number: int = 0, otherwise: Array | None = None) -> Array:
        """Return of each worker its value of this number, counted from a recorded round on.

        What follows the last one is the first one; `otherwise` is for workers without any.
        """
        begin = np.searchsorted(self._keys, self._workers * self._rounds + row) - self._first
        index = self._first + (begin + number) % np.maximum(self.counts, 1)
        known: Array = self._values[np.minimum(index, len(self._values) - 1)]  # the last ones may have none
        return known if otherwise is None else np.where(self.counts > 0, known, otherwise)


@dataclass(frozen=True)
class RecordedRounds:
    """What each task, each order and each round as a whole took in some rounds of a run."""

    numbers: IntArray  # of these rounds
    seconds: Sequences  # of tasks
    overhead: Sequences  # of orders
    gaps: Array  # seconds of each round that no worker accounts for: they are the manager's
    order: IntArray  # which of them take the place of each

    def row(self, round: int) -> int:
        """Return which recorded round takes the place of a round."""
        position = int(np.searchsorted(self.numbers, round))
        return int(self.order[min(position, len(self.numbers) - 1)])

    def gap(self, round: int) -> float:
        """Return the seconds of a round that no worker accounts for."""
        return float(self.gaps[self.row(round)])

    def only(self, chosen: IntArray) -> "RecordedRounds":
        """Return what some of the workers took."""
        return replace(self, seconds=self.seconds.only(chosen), overhead=self.overhead.only(chosen))

    def resampled(self, rng: Generator) -> "RecordedRounds":
        """Return the same rounds in blocks that are drawn at random, with replacement."""
        count = len(self.numbers)
        starts = rng.integers(0, count, -(-count // BLOCK))
        return replace(self, order=(starts[:, None] + np.arange(BLOCK)).ravel()[:count] % count)


def recorded_rounds(columns: State, n: int) -> RecordedRounds:
    """Return the rounds in a run file, of n workers."""
    numbers, worker, tasks = columns["round"], columns["worker"], columns["tasks"]
    count, everyone = len(numbers), np.arange(n)
    keys = worker * count + np.repeat(np.arange(count), columns["deliveries"])
    orders, place = np.unique(keys, return_inverse=True)  # single arrivals share an order
    overhead: Array = np.bincount(place, columns["overhead"], len(orders)).astype(np.float64)
    spent = overhead + np.bincount(np.repeat(place, tasks), columns["seconds"], len(orders))
    longest = np.zeros(count)
    np.maximum.at(longest, orders % count, spent)
    keys = np.repeat(keys, tasks)
    in_order = np.argsort(keys, kind="stable")
    return RecordedRounds(
        numbers,
        Sequences(count, keys[in_order], columns["seconds"][in_order], everyone),
        Sequences(count, orders, overhead, everyone),
        np.maximum(columns["duration"] - longest, 0.0),
        np.arange(count),
    )


class ReplayedTimes(DrawnTimes):
    """Task times of recorded rounds; those of workers that did nothing in these are drawn from a law."""

    def __init__(self, law: Law, seed: int, recorded: RecordedRounds, stoppable: bool = True) -> None:
        super().__init__(law, seed, stoppable=stoppable)
        self._recorded, self._everyone = recorded, bool(recorded.seconds.counts.all())

    def _draw(self, round: int, number: int) -> Array:
        otherwise = None if self._everyone else super()._draw(round, number)
        return self._recorded.seconds.at(self._recorded.row(round), number, otherwise)
