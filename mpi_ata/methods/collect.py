"""What the rounds of several methods are made of: checked quotas, a tally of tasks, sums in a fixed order."""

import numpy as np

from mpi_ata.allocators import GTA, Allocator
from mpi_ata.arrays import Array, IntArray, State, blocks, entry, total
from mpi_ata.clusters import Arrival, Cluster
from mpi_ata.errors import RunError
from mpi_ata.methods.interface import NO_DELAYS, Round
from mpi_ata.updates import Update


class UpdateMethod:
    """What methods that move x by an update share."""

    allocator: Allocator | None = None

    def __init__(self, x0: Array, update: Update) -> None:
        self.x = np.array(x0)
        self.k = 0
        self.update = update

    def state(self) -> State:
        """The point, the number of rounds, and what the update remembers."""
        inner = {f"update.{name}": array for name, array in self.update.state().items()}
        return {"x": self.x.copy(), "k": np.array(self.k)} | inner

    def restore(self, state: State) -> None:
        """Go on from an earlier state."""
        x, k = entry(state, "x", self.x), int(entry(state, "k", self.k))
        inner = {name: array for name, array in state.items() if name.startswith("update.")}
        self.update.restore({name.removeprefix("update."): array for name, array in inner.items()})
        self.x, self.k = x, k


class AllocatorMethod(UpdateMethod):
    """What methods share whose rounds begin with the quotas of an allocator."""

    allocator: Allocator
    greedy_instead = ""  # where all that is ordered is used, the name of the greedy method of this kind

    def __init__(self, x0: Array, allocator: Allocator, update: Update) -> None:
        super().__init__(x0, update)
        self.allocator = not_greedy(allocator, self.greedy_instead) if self.greedy_instead else allocator
        self._count_overhead = bool(getattr(allocator, "overhead", False))

    def quotas(self, n: int) -> tuple[IntArray, int]:
        """The quotas of the coming round and their sum, at least as much as the budget asks for."""
        a, B = np.asarray(self.allocator.allocate()), self.allocator.budget
        if a.shape != (n,) or a.dtype.kind not in "iu" or np.minimum.reduce(a) < 0 or (tasks := total(a)) < B:
            raise RunError(f"the allocator gave {a}; it must give {n} counts whose sum is at least {B}")
        return a, tasks

    def exact_quotas(self, n: int) -> IntArray:
        """The quotas of the coming round, just as many as the budget asks for."""
        (a, tasks), B = self.quotas(n), self.allocator.budget
        if tasks != B:
            raise RunError(f"the allocator gave {tasks} tasks, but this method needs exactly its budget, {B}")
        return a

    def learn(self, arrival: Arrival) -> None:
        """Let the allocator know what an arrival tells of its worker's speed."""
        overhead = arrival.overhead if self._count_overhead else 0.0
        self.allocator.observe(arrival.worker, arrival.seconds, overhead)


def not_greedy(allocator: Allocator, instead: str) -> Allocator:
    """The allocator, unless it is one whose quotas leave open who does how much."""
    if isinstance(allocator, GTA):
        raise ValueError(
            "the allocator gta lets everyone work and drops what is left over, but this method uses all that "
            f"it orders; take another allocator, or {instead}, the greedy method of this kind"
        )
    return allocator


class Tally:
    """Counts what becomes of tasks, from now to the end of the round."""

    def __init__(self, cluster: Cluster) -> None:
        self.used = np.zeros(cluster.n, np.int64)
        self.lost = np.zeros(cluster.n, np.int64)
        self._cluster = cluster
        self._undelivered = cluster.undelivered.copy()
        self._seconds = np.add.reduce(cluster.undelivered_time)
        self._began = self._ended = cluster.now()

    def all_in(self) -> None:
        """The last needed arrival has come."""
        self._ended = self._cluster.now()

    def round(self, k: int, quota: IntArray, delays: IntArray = NO_DELAYS) -> Round:
        """All that happened."""
        wasted = self._cluster.undelivered - self._undelivered
        waste = float(np.add.reduce(self._cluster.undelivered_time) - self._seconds)
        return Round(k, quota, self.used, wasted, self.lost, waste, self._ended - self._began, delays)


class Sum:
    """Adds results in the order of `workers`, each as soon as those before it are in; or as they come.

    A sum of floats depends on the order.  A fixed one makes the same run give the same x, wherever
    the tasks ran and whoever was first.  They are added up where the first one is.
    """

    def __init__(self, workers: IntArray | None = None) -> None:
        self._total: Array | None = None
        self._last: tuple[Array, ...] = ()  # added when the mean is taken: memory is walked through once
        self._order = None if workers is None else iter(workers.tolist())
        self._next = None if self._order is None else next(self._order)
        self._early: dict[int, Array] = {}

    def add(self, worker: int, result: Array) -> None:
        """Take in one worker's result."""
        if self._order is None:
            self._add(result)
            return
        self._early[worker] = result
        while self._next in self._early:
            result, self._next = self._early.pop(self._next), next(self._order, None)
            self._add(result, last=self._next is None)

    def _add(self, result: Array, last: bool = False) -> None:
        if self._total is None:
            self._total = result
        elif last:
            self._last = (result,)
        else:
            self._total += result

    def mean(self, count: int) -> Array:
        """The sum, divided by how many gradients it is of; made in its own memory."""
        if self._total is None:
            raise RuntimeError("there is no mean of nothing")
        for part, *last in blocks(self._total, *self._last):
            for result in last:
                part += result
            part /= count
        return self._total
