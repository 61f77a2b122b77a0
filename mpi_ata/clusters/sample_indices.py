"""A sequence that all workers share: each of its numbers 0, 1, 2, ... is used by one task, whoever does it.

Problems with `shares_draws` get them as `task.index`; so each sample of a dataset is used once per epoch.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from mpi_ata.arrays import State, entry
from mpi_ata.errors import UsageError
from mpi_ata.problems import ProblemAbilities

MOST = 1_000_000  # tasks per order


class SampleIndices:
    """Who has which numbers; those of tasks that are not delivered are given to others."""

    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []  # a heap of numbers that were given back
        self._held: dict[int, list[int]] = {}  # by worker
        self._returned: dict[int, int] = {}  # by worker: how many it gave back of its latest order

    def take(self, workers: Sequence[int], counts: Sequence[int]) -> None:
        """Give each worker as many numbers as its order has tasks.

        The smallest ones go to those who gave back least: nobody can hold a number forever by being slow.
        """
        if max(counts, default=0) > MOST:
            raise UsageError(
                "shuffle='epoch' needs orders of a known number of tasks, and so does a sampler, but this "
                "method orders tasks without end; use method sgd, or draw with replacement"
            )
        orders = zip(workers, counts, strict=True)
        for worker, count in sorted(orders, key=lambda order: self._returned.pop(order[0], 0)):
            self._held[worker] = [heappop(self._free) if self._free else self._new() for _ in range(count)]

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def of(self, worker: int) -> list[int]:
        """Return the numbers of the tasks that a worker has not delivered, in their order."""
        return self._held.get(worker, [])

    def deliver(self, worker: int, count: int) -> None:
        """Note that the results of a worker's next tasks are used."""
        del self._held[worker][:count]

    def give_back(self, worker: int) -> None:
        """Let others have the numbers of the tasks that a worker has not delivered."""
        if numbers := self._held.pop(worker, []):
            self._returned[worker] = len(numbers)
        for number in numbers:
            heappush(self._free, number)

    def state(self) -> State:
        """Return who has which numbers."""
        held = [(worker, number) for worker, numbers in self._held.items() for number in numbers]
        return {
            "draws.next": np.array(self._next),
            "draws.free": np.array(sorted(self._free), np.int64),
            "draws.held": np.array(held, np.int64).reshape(-1, 2),
            "draws.returned": np.array(list(self._returned.items()), np.int64).reshape(-1, 2),
        }

    def restore(self, state: State, idle: bool) -> None:
        """Resume from an earlier state; with `idle`, what workers had not delivered is given back."""
        self._next = int(entry(state, "draws.next", self._next))
        self._free, self._held = state["draws.free"].tolist(), {}
        for worker, number in state["draws.held"].tolist():
            self._held.setdefault(worker, []).append(number)
        self._returned = dict(state["draws.returned"].tolist())
        if idle:
            for worker in list(self._held):
                self.give_back(worker)
            self._returned.clear()


def sample_indices_for(problem: object) -> SampleIndices | None:
    """Return the indices for a problem that asks for them."""
    return SampleIndices() if ProblemAbilities.of(problem).shares_draws else None
