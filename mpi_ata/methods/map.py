"""Rounds of B results of any kind, handed to the user's own function or loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import State, entry
from mpi_ata.clusters import Cluster
from mpi_ata.clusters.computations import TaskResult
from mpi_ata.errors import RunError, users_code
from mpi_ata.methods.collector import Collector
from mpi_ata.methods.interface import AllocatorMethod, Round
from mpi_ata.packing import from_state, to_state

Combine = Callable[[Any, Sequence[TaskResult]], Any]


class Map(AllocatorMethod):
    """B results per round, each with its worker and seconds: `combine(x, results)` returns the next x.

    Without `combine` x stays as it is, and a loop of your own reads `results` after each step, and sets `x`.
    Results are sorted by worker and task number, so that quotas that sum to B give the same list again.
    """

    x: Any
    shares_workers = True
    any_x = True  # x is whatever combine() returns: it may contain NaN, and need not be an array

    def __init__(self, x0: Any, allocator: Allocator, combine: Combine | None = None) -> None:
        self.x, self.k = x0, 0
        self.allocator, self.combine = allocator, combine
        self.results: tuple[TaskResult, ...] = ()  # of the latest round

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect B results at x, learn the times, combine the results."""
        B, k = self.allocator.budget, self.k + 1
        a, exact = self.quotas(cluster)

        collector, found = Collector(cluster, self.allocator), _Found()
        collector.collect(found, self.x, k, a, B, exact)

        self.results = tuple(sorted(found, key=lambda result: result[:2]))
        self.x, self.k = self._combined(), k
        return collector.round(k, a)._replace(results=self.results)

    def _combined(self) -> Any:
        if self.combine is None:
            return self.x
        with users_code("combine() failed"):
            x = self.combine(self.x, self.results)
        if x is None and self.x is not None:
            raise RunError("combine() returned None instead of the next x; is a return statement missing?")
        return x

    def state(self) -> State:
        """Return x as named arrays, and the number of rounds."""
        return to_state(self.x, "x") | {"k": np.array(self.k)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self.x, self.k = from_state(state, "x"), int(entry(state, "k", self.k))


class _Found(list[TaskResult]):
    """The results of a round, as they come."""

    def add(self, worker: int, results: list[TaskResult]) -> None:
        """Keep the results of an arrival."""
        self += results

    def skip(self, worker: int) -> None:
        """Do nothing: others do the tasks of a lost worker."""
