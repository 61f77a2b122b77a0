"""A problem whose tasks compute nothing: only how long they take matters."""

from collections.abc import Sequence

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.problems.interface import Task


class NoWork:
    """All gradients are 0, so a run costs only its decisions and its clock."""

    def __init__(self) -> None:
        self.x0: Array = np.zeros(1)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return zeros of the right shape."""
        return np.zeros(1)

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of these gradients, which is 0."""
        return np.zeros(1)
