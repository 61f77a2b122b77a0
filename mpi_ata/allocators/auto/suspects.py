"""Workers that became slower and are tried again in case they recover, each time after a doubled pause."""

import numpy as np

from mpi_ata.arrays import IntArray, State, entry

NEVER = np.iinfo(np.int64).max
PATIENCE = 8  # rounds until a slow worker is first tried: about as many as it took to notice


class Suspects:
    """When to try each suspect; the cost of trying in vain grows only with the logarithm of the rounds."""

    def __init__(self, n: int) -> None:
        self._next = np.full(n, NEVER)  # the round in which to try each worker
        self._pause = np.zeros(n, np.int64)  # rounds until then, when that was decided
        self.first = NEVER  # the first of those rounds

    def add(self, worker: int, k: int, pause: int = PATIENCE) -> None:
        """Try a worker after a pause, which doubles with each trial."""
        self._pause[worker], self._next[worker] = pause, k + pause
        self.first = min(self.first, k + pause)

    def among(self, workers: IntArray) -> IntArray:
        """Return the positions of suspects among some workers."""
        return np.flatnonzero(self._next[workers] < NEVER) if self.first < NEVER else workers[:0]

    def take(self, k: int) -> IntArray:
        """Return the workers to try in round k, and double the pause until the next trial of each."""
        if k < self.first:
            return np.zeros(0, np.int64)
        workers = np.flatnonzero(self._next <= k)
        self._pause[workers] *= 2
        self._next[workers] = k + self._pause[workers]
        self.first = int(self._next.min())
        return workers

    def state(self) -> State:
        """Return when to try each worker."""
        return {"suspects.next": self._next.copy(), "suspects.pause": self._pause.copy()}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        later, pause = entry(state, "suspects.next", self._next), entry(state, "suspects.pause", self._pause)
        self._next, self._pause, self.first = later, pause, int(later.min())
