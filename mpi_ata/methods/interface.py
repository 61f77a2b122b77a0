"""What every method promises and returns for a round, and what our own methods share."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpi_ata.abilities import declared
from mpi_ata.allocators import GTA, Allocator, ATAAuto, MSync
from mpi_ata.arrays import Array, IntArray, State, entry, total
from mpi_ata.clusters.computations import TaskResult
from mpi_ata.clusters.interface import Arrival, Back, Cluster, Lost, named
from mpi_ata.errors import LossError, RunError
from mpi_ata.updates import Update

NO_DELAYS: IntArray = np.zeros(0, np.int64)
NO_LOGS: Mapping[str, float] = MappingProxyType({})


class Round(NamedTuple):
    """What happened in one round; the arrays have one entry for each worker."""

    number: int  # the paper's k = 1, 2, ...
    quota: IntArray  # tasks that each may do; where there is no limit, what was used
    used: IntArray  # tasks whose result went into an update
    wasted: IntArray  # tasks stopped, or finished and not used
    lost: IntArray  # tasks that vanished with their worker
    waste: float  # seconds of worker time spent on wasted tasks
    duration: float  # from the first order to the last needed arrival, on the cluster's clock
    delays: IntArray = NO_DELAYS  # of asynchronous updates: how many came between start and use
    losses: tuple[Lost, ...] = ()  # workers lost in this round, for good or for a while
    returns: tuple[Back, ...] = ()  # workers that came back in this round
    results: tuple[TaskResult, ...] = ()  # of a computation, by worker and task number
    logs: Mapping[str, float] = NO_LOGS  # of a Trainer: what its tasks have logged, on average

    @property
    def started(self) -> IntArray:
        """All tasks begun, each counted in the round in which its fate is known."""
        return self.used + self.wasted + self.lost


class Method(Protocol):
    """An iterative algorithm: one step is the body of the paper's for-loop."""

    x: Any  # an array, but where tasks are no gradients
    k: int  # rounds done

    @property
    def allocator(self) -> Allocator | None:
        """What decides the quotas, if anything does; its state is not part of the method's."""

    def step(self, cluster: Cluster) -> Round:
        """Do one round on the cluster and move x."""

    def state(self) -> State:
        """Return what it must remember from round to round: x, k, the state of the update, and so on."""

    def restore(self, state: State) -> None:
        """Resume from what `state` returned."""


class MethodAbilities(NamedTuple):
    """What a method may declare beside its steps, on the class or the object."""

    allocator: Allocator | None = None
    update: Any = None
    any_x: bool = False  # whether x is any value, which may contain NaN, and need not be an array
    owns_data: bool = False  # whether each worker, by its index, has data that no other has
    shares_workers: bool = False  # whether rounds use all that they order, so that workers can be shared
    point_per_worker: bool = False  # whether workers go on from round to round, each with a point of its own
    points_per_task: int = 1  # 2 where tasks are those of TwoPoints(problem)
    greedy_instead: str = ""  # the name of the greedy method of this kind, where it rejects greedy allocators
    B: float | None = None  # tasks per round, where there is no allocator
    S: float | None = None

    @classmethod
    def of(cls, method: object) -> "MethodAbilities":
        """Return what a method, or its class, declares."""
        return declared(cls, method)

    @property
    def tasks_per_round(self) -> float:
        """How many tasks a round needs at least, as far as the method says."""
        budget = None if self.allocator is None else self.allocator.budget
        return next((count for count in (budget, self.B, self.S) if isinstance(count, int | float)), 0)


def decision_time(method: object) -> float:
    """Return the seconds that a method's allocator took so far: asked in each round, so looked up alone."""
    seconds: float = getattr(method, "decision_time", 0.0)
    return seconds


class UpdateMethod:
    """What methods that move x by an update share."""

    allocator: Allocator | None = None
    owns_data = False  # whether each worker, by its index, has data that no other has

    def __init__(self, x0: Array, update: Update) -> None:
        self.x = np.array(x0)
        self.k = 0
        self.update = update

    def scaled(self, arrival: Arrival) -> Array:
        """Return the gradient that has arrived, times the factor of its worker's step size: 1 here."""
        return np.asarray(arrival.result)

    def state(self) -> State:
        """Return the point, the number of rounds, and the state of the update."""
        inner = {f"update.{name}": array for name, array in self.update.state().items()}
        return {"x": self.x.copy(), "k": np.array(self.k)} | inner

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        x, k = entry(state, "x", self.x), int(entry(state, "k", self.k))
        inner = {name: array for name, array in state.items() if name.startswith("update.")}
        self.update.restore({name.removeprefix("update."): array for name, array in inner.items()})
        self.x, self.k = x, k


class AllocatorMethod(UpdateMethod):
    """What methods share whose rounds begin with the quotas of an allocator."""

    allocator: Allocator
    decision_time = 0.0  # seconds that allocators took so far
    greedy_instead = ""  # where all that is ordered is used, the name of the greedy method of this kind

    def __init__(self, x0: Array, allocator: Allocator, update: Update) -> None:
        super().__init__(x0, update)
        self.allocator = not_greedy(allocator, self.greedy_instead) if self.greedy_instead else allocator

    def quotas(self, cluster: Cluster) -> tuple[IntArray, bool]:
        """Return the quotas of the next round, and whether just as many results are used."""
        n, available, B = cluster.n, cluster.available, self.allocator.budget
        everyone = np.count_nonzero(available) == n
        if not everyone:
            check_anyone(cluster)
        began = time.perf_counter()
        a = np.asarray(self.allocator.allocate(available))
        self.decision_time += time.perf_counter() - began
        if a.shape != (n,) or a.dtype.kind not in "iu" or np.minimum.reduce(a) < 0 or (tasks := total(a)) < B:
            raise RunError(f"the allocator gave {a}; it must give {n} counts whose sum is at least {B}")
        if not everyone and a[~available].any():
            raise RunError(f"the allocator gave {a}; it must give 0 to workers {np.flatnonzero(~available)}")
        divide = getattr(cluster, "divide", None)  # asked in each round, so looked up alone
        if divide is None:
            return a, tasks == B
        return divide(a), tasks == B and not has_idle_spares(self.allocator)

    def exact_quotas(self, cluster: Cluster) -> IntArray:
        """Return the quotas of the next round, whose sum is exactly the budget."""
        (a, exact), B = self.quotas(cluster), self.allocator.budget
        if not exact:
            raise RunError(
                f"the allocator gave {a.sum()} tasks, but this method needs exactly its budget, {B}"
            )
        return a


def is_greedy(allocator: Allocator) -> bool:
    """Return whether quotas leave open who does how much: the surplus is dropped."""
    return isinstance(allocator, GTA | MSync) or (
        isinstance(allocator, ATAAuto) and allocator.spares == "auto"
    )


def has_idle_spares(allocator: Allocator) -> bool:
    """Return whether idle workers may do tasks beyond the quotas, where jobs share workers."""
    return isinstance(allocator, ATAAuto) and allocator.spares == "idle"


def not_greedy(allocator: Allocator, instead: str) -> Allocator:
    """Return the allocator, unless it is greedy."""
    if isinstance(allocator, GTA | MSync):
        name = "gta" if isinstance(allocator, GTA) else "m-sync"
        raise ValueError(
            f"the allocator {name} lets everyone work and drops surplus results, but this method uses all it "
            f"orders; use another allocator, or {instead}, the greedy method of this kind"
        )
    if isinstance(allocator, ATAAuto) and allocator.spares != "none":
        raise ValueError(
            f"spares = {allocator.spares!r} of the allocator ata-auto drops surplus results, but this method "
            "uses all it orders; set spares = 'none'"
        )
    return allocator


class WorkersLostError(LossError):
    """A round cannot be completed, because of these losses in it."""

    def __init__(self, text: str, losses: Sequence[Lost] = ()) -> None:
        super().__init__(text)
        self.losses = losses


def check_anyone(cluster: Cluster, losses: Sequence[Lost] = ()) -> None:
    """Raise WorkersLostError if no worker is left; `losses` are those of this round."""
    if not cluster.available.any():
        text = f"all {cluster.n} workers are lost or suspended; resume the run on other workers"
        raise WorkersLostError(text, losses)


class OwnerLostError(WorkersLostError):
    """A worker is lost, and no other worker has its data."""

    def __init__(self, lost: Lost, cluster: Cluster) -> None:
        who = named(lost.worker, cluster.identities[lost.worker])
        why = f" ({lost.why})" if lost.why else ""
        rule = "no other worker has its data; resume the run on the same workers"
        super().__init__(f"{who} is {lost.kind}{why}, and {rule}", [lost])


def check_everyone(cluster: Cluster) -> None:
    """Raise OwnerLostError if a worker is lost, since no other worker has its data."""
    if not cluster.available.all():
        raise OwnerLostError(Lost(int(cluster.available.argmin()), 0, ""), cluster)
