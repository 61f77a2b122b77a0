"""Finds the tasks that are done well before a round ends, so that their results may come in one message."""

import numpy as np

from mpi_ata.allocators.auto.task_model import Speeds
from mpi_ata.arrays import Array, IntArray

CERTAINTY = 4.0  # standard deviations: task times have longer tails than the normal distribution


def sure_tasks(speeds: Speeds, delays: Array, quota: IntArray, length: float) -> IntArray:
    """Return how many tasks of each quota are done within a round of this length, almost surely.

    q tasks are done after q mu + z sqrt(q sd^2 + (q un)^2) at most, which is below q c + z sd sqrt(q) with
    c = mu + z un: this is the length at sqrt(q) = (sqrt((z sd)^2 + 4 c length) - z sd) / 2c.
    """
    late = CERTAINTY * speeds.sd
    each = speeds.mu + CERTAINTY * speeds.un
    left = np.maximum(length - delays, 0.0)
    root = (np.sqrt(late * late + 4.0 * each * left) - late) / (2.0 * each)
    return np.asarray(np.minimum(quota, (root * root).astype(np.int64)))
