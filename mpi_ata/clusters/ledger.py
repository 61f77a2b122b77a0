"""The accounts of a cluster: what became of each worker's tasks, and how long they took."""

from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.stats import FOLD, TaskTimeStats

_NAMES = {  # in a run file: of the attributes here
    "worker_time": "worker_time",
    "undelivered": "stopped",
    "undelivered_time": "stopped_time",
}


class Changes(NamedTuple):
    """What was booked between two calls of `Ledger.changes`."""

    stopped: IntArray  # tasks of each worker
    lost: IntArray
    stopped_time: float  # seconds of all workers together


class Ledger:
    """Counts what becomes of each worker's tasks: the cluster writes it, everybody else reads it.

    The seconds of lost tasks are not counted: on real ranks nobody is left to report them.
    """

    def __init__(self, n: int) -> None:
        self.worker_time: Array = np.zeros(n)  # seconds spent on tasks, stopped ones included
        self.stopped = np.zeros(n, np.int64)  # tasks begun and then stopped
        self.stopped_time: Array = np.zeros(n)  # seconds spent on those
        self.lost = np.zeros(n, np.int64)  # tasks that vanished with their worker
        self.stats = TaskTimeStats(n)  # of delivered tasks
        self._unchanged = np.zeros(n, np.int64)
        self._unchanged.flags.writeable = False
        self._lost_changed = True
        self._remember()

    def deliver(self, worker: int, seconds: list[float], spent: float, overhead: float = 0.0) -> None:
        """Book the tasks of one arrival, which took `spent` seconds in all."""
        self.worker_time[worker] += spent
        pending = self.stats.pending  # not through stats.add: a call costs as much as the rest of this
        pending.append((worker, seconds, overhead))
        if len(pending) >= FOLD:
            self.stats.fold()

    def stop(self, workers: IntArray | int, tasks: IntArray | int, seconds: Array | float) -> None:
        """Book tasks that these workers began and did not deliver, since they were stopped."""
        self.worker_time[workers] += seconds
        self.stopped_time[workers] += seconds
        self.stopped[workers] += tasks
        self._changed = True

    def lose(self, workers: IntArray | int, tasks: IntArray | int) -> None:
        """Book tasks that vanished with their workers."""
        self.lost[workers] += tasks
        self._changed = self._lost_changed = True

    def changes(self) -> Changes:
        """Return what was stopped and lost since the last call."""
        if not self._changed:
            return Changes(self._unchanged, self._unchanged, 0.0)
        stopped = self.stopped - self._stopped_before
        lost = self.lost - self._lost_before if self._lost_changed else self._unchanged
        seconds = self._seconds_before
        self._remember()
        return Changes(stopped, lost, self._seconds_before - seconds)

    def unreported_losses(self) -> IntArray:
        """Return the lost tasks of each worker that the next call of `changes` will report."""
        return self.lost - self._lost_before

    def _remember(self) -> None:
        self._stopped_before = self.stopped.copy()
        self._seconds_before = float(np.add.reduce(self.stopped_time))
        if self._lost_changed:
            self._lost_before = self.lost.copy()
        self._changed = self._lost_changed = False

    def state(self) -> State:
        """Return the accounts by the names they have in a run file."""
        return {name: getattr(self, own).copy() for name, own in _NAMES.items()}

    def restore(self, state: State) -> None:
        """Resume from an earlier state; nothing has changed since."""
        saved = {own: entry(state, name, getattr(self, own)) for name, own in _NAMES.items()}
        vars(self).update(saved)
        self._remember()

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from the workers of a run file: `rows` pairs a worker here with its row there."""
        self.stats.take_over(workers, rows)
        for here, there in rows:
            self.stopped_time[here] = workers["unfinished"][there]
        self._remember()


def in_flight(state: State) -> IntArray:
    """Return 1 for each worker that had begun a task when this state of its cluster was saved, else 0."""
    if "stopping" in state:
        return state["stopping"]
    return (state.get("left", np.zeros(0)) > 0).astype(np.int64)
