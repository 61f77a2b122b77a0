"""What every method promises, and what it returns for a round."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import IntArray, State
from mpi_ata.clusters.interface import Back, Cluster, Lost
from mpi_ata.clusters.values import TaskResult

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
