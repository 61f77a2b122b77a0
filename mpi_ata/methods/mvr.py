"""Rennala SGD with momentum-based variance reduction."""

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, State, restore_saved, saved
from mpi_ata.errors import require
from mpi_ata.methods.sgd import SGD
from mpi_ata.updates import Update


class RennalaMVR(SGD):
    """The same as SGD, but x moves by g_k = mean[f'(x_k; xi) + (1 - a)(g_{k-1} - f'(x_{k-1}; xi))].

    Z. Tovmasyan, A. Maranjyan, P. Richtárik: Rennala MVR (2026), arXiv 2605.08871; the recursion is STORM's,
    A. Cutkosky and F. Orabona (2019), arXiv 1905.10018.  There allocation is greedy, as here with GTA; any
    other allocator will do.  The first g is the mean of B gradients at x_0: that its batch is B too is our
    choice.  A task computes two gradients with one sample, so the cluster needs `TwoPoints(problem)`; in job
    files that is done, and a drawn task time counts twice.  With a = 1 this is SGD at twice the cost.
    """

    points_per_task = 2

    def __init__(self, x0: Array, allocator: Allocator, update: Update, a: float) -> None:
        require(0 < a <= 1, f"{a=} must be above 0 and at most 1: how much of each estimate is new")
        super().__init__(x0, allocator, update)
        self.a = a
        self.before = self.x  # x_{k-1}
        self.g = np.zeros_like(self.x)  # g_{k-1}

    def point(self) -> Array:
        """Return x_k and x_{k-1}."""
        return np.stack([self.x, self.before])

    def estimate(self, mean: Array) -> Array:
        """Return g_k, given the mean gradients at x_k and x_{k-1}."""
        new, old = mean
        self.g = new + (1 - self.a) * (self.g - old) if self.k else new
        self.before = self.x
        return self.g.copy()

    def state(self) -> State:
        """Return the point, the state of the update, and the previous point and estimate."""
        return super().state() | saved(self, ("before", "g"))

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        super().restore(state)
        restore_saved(self, state, ("before", "g"))
