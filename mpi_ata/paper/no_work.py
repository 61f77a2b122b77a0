"""A problem whose tasks compute nothing: only how long they take matters."""

from collections.abc import Sequence

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.problems import Task


class NoWork:
    """Gradients are 0, so that a run costs no more than its decisions and its clock."""

    def __init__(self) -> None:
        self.x0: Array = np.zeros(1)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return nothing but the right shape."""
        return np.zeros(1)

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of as little."""
        return np.zeros(1)
