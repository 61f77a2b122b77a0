"""What every method promises, and what it tells of a round."""

from dataclasses import dataclass
from typing import Protocol

from mpi_ata.arrays import Array, IntArray
from mpi_ata.cluster.interface import Cluster


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round; the arrays have one entry for each worker."""

    number: int  # the paper's k = 1, 2, ...
    quota: IntArray
    used: IntArray  # tasks whose result went into an update
    wasted: IntArray  # tasks finished or begun, but not used
    lost: IntArray  # tasks that vanished with their worker
    waste: float  # seconds of worker time that went into wasted tasks
    duration: float  # from the first order to the last needed arrival, on the cluster's clock

    @property
    def started(self) -> IntArray:
        """Every task that was begun."""
        return self.used + self.wasted + self.lost


class Method(Protocol):
    """An iterative algorithm: one step is the body of the paper's for-loop."""

    x: Array
    k: int  # rounds done

    def step(self, cluster: Cluster) -> Round:
        """Do one round on the cluster, and move x."""
