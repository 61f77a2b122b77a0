"""Asynchronous SGD where each worker owns its data, and step sizes make all data count equally."""

import math

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray, State, restore_saved, saved
from mpi_ata.clusters import Arrival, Cluster
from mpi_ata.errors import require
from mpi_ata.methods.asynchronous import ASGD, Ringmaster
from mpi_ata.methods.interface import check_everyone
from mpi_ata.updates import Update

NEVER = 2**62  # updates after which a gradient is too old


class RescaledASGD(Ringmaster):
    """The same as Ringmaster, but nothing is stopped, and worker i has the step size gamma_i ~ tau_i.

    A. Mahran, A. Maranjyan, P. Richtárik: Rescaled Asynchronous SGD (2026), arXiv 2605.13434.  There the task
    times tau_i are fixed and known.  Here tau_i is the mean time of worker i's tasks so far, with the time on
    the way, and gamma_i = gamma tau_i mean_j(1 / tau_j), so that the mean over all updates is gamma: both are
    our choice.  Where times vary, data count equally on average, not in each round.
    """

    owns_data = True

    def __init__(self, x0: Array, n: int, update: Update, budget: int) -> None:
        super().__init__(x0, n, scalable(update), NEVER, budget)
        self.K = np.zeros(n, np.int64)  # results of each worker
        self.T = np.zeros(n)  # seconds that they took

    def scaled(self, arrival: Arrival) -> Array:
        """Learn how long the task took, and return its gradient times gamma_i / gamma."""
        i, g, seconds, overhead = arrival
        self.K[i] += 1
        self.T[i] += math.fsum(seconds) + overhead
        known = self.T > 0
        if known[i]:
            g *= self.T.item(i) / self.K.item(i) * float((self.K[known] / self.T[known]).mean())
        return np.asarray(g)

    def state(self) -> State:
        """Return the point, the state of the update, the gradients under way, and the times learned."""
        return super().state() | saved(self, ("K", "T"))

    def restore(self, state: State) -> None:
        """Resume from an earlier state; the caller rejects another number of workers."""
        super().restore(state)
        if len(state["K"]) == len(self.K):
            restore_saved(self, state, ("K", "T"))


class HeterogeneousDataASGD(ASGD):
    """The same as ASGD, but everyone computes a_i + 1 gradients, with the step size gamma_i ~ 1 / (a_i + 1).

    RescaledASGD with the quotas of HeterogeneousDataSGD, which is our combination: counts are known before
    the round, so all data count equally in it, whatever the times.  Step sizes are gamma on average.
    """

    owns_data = True
    greedy_instead = "rescaled-asgd"

    def __init__(self, x0: Array, allocator: Allocator, update: Update) -> None:
        super().__init__(x0, allocator, scalable(update))

    def exact_quotas(self, cluster: Cluster) -> IntArray:
        """Return the allocator's quotas, and one task more for everyone."""
        check_everyone(cluster)
        a = super().exact_quotas(cluster) + 1
        self._factors = a.mean() / a
        return a

    def scaled(self, arrival: Arrival) -> Array:
        """Return the gradient times gamma_i / gamma."""
        i, g, *_ = arrival
        g *= self._factors.item(i)
        return np.asarray(g)


def scalable(update: Update) -> Update:
    """Return the update, unless its points have parts that must not be scaled with the gradient."""
    tail = getattr(getattr(update, "layout", None), "has_tail", False)  # of a model in PyTorch
    rule = "which this method would scale with gradients; use heterogeneous-data-sgd, malenia or ringleader"
    require(not tail, f"points of this model have buffers, logs or a loss scale, {rule}")
    return update
