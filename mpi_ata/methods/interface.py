"""What every method promises, and what it tells of a round."""

from typing import NamedTuple, Protocol

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.clusters.interface import Cluster

NO_DELAYS: IntArray = np.zeros(0, np.int64)


class Round(NamedTuple):
    """What happened in one round; the arrays have one entry for each worker."""

    number: int  # the paper's k = 1, 2, ...
    quota: IntArray  # tasks each could do; where nobody sets a limit, what was used
    used: IntArray  # tasks whose result went into an update
    wasted: IntArray  # tasks finished or begun, but not used
    lost: IntArray  # tasks that vanished with their worker
    waste: float  # seconds of worker time that went into wasted tasks
    duration: float  # from the first order to the last needed arrival, on the cluster's clock
    delays: IntArray = NO_DELAYS  # of asynchronous updates: how many came between start and use

    @property
    def started(self) -> IntArray:
        """Every task that was begun, counted in the round in which its fate is known."""
        return self.used + self.wasted + self.lost


class Method(Protocol):
    """An iterative algorithm: one step is the body of the paper's for-loop."""

    x: Array
    k: int  # rounds done

    @property
    def allocator(self) -> Allocator | None:
        """Who decides the quotas, where somebody does; its state is not part of the method's."""

    def step(self, cluster: Cluster) -> Round:
        """Do one round on the cluster, and move x."""

    def state(self) -> State:
        """What it must remember from round to round: x, k, what the update remembers, and more if need be."""

    def restore(self, state: State) -> None:
        """Go on from what `state` gave."""
