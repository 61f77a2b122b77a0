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


class Mark(NamedTuple):
    """The accounts at one moment, to compare later ones with."""

    stopped: IntArray
    lost: IntArray
    stopped_time: float


class Changes(NamedTuple):
    """What was booked since a mark."""

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
        self.lost = np.zeros(n, np.int64)  # tasks that vanished with their worker, in this process's part
        self.stats = TaskTimeStats(n)  # of delivered tasks
        self._mark: Mark | None = None  # of the present accounts, if one was made
        nothing = np.zeros(n, np.int64)
        nothing.flags.writeable = False
        self._unchanged = Changes(nothing, nothing, 0.0)

    def deliver(self, worker: int, seconds: list[float], spent: float, overhead: float = 0.0) -> None:
        """Book the tasks of one arrival, which took `spent` seconds in all."""
        self.worker_time[worker] += spent
        pending = self.stats.pending  # not through stats.add: a call costs as much as the rest of this
        pending.append((worker, seconds, overhead))
        if len(pending) >= FOLD:
            self.stats.fold()

    def deliver_all(
        self, workers: IntArray, seconds: list[list[float]], spent: list[float], overheads: list[float]
    ) -> None:
        """Book several arrivals, each from a different worker."""
        self.worker_time[workers] += spent
        self.stats.pending += zip(workers.tolist(), seconds, overheads, strict=True)
        if len(self.stats.pending) >= FOLD:
            self.stats.fold()

    def stop(self, workers: IntArray | int, tasks: IntArray | int, seconds: Array | float) -> None:
        """Book tasks that these workers began and did not deliver, since they were stopped."""
        self.worker_time[workers] += seconds
        self.stopped_time[workers] += seconds
        self.stopped[workers] += tasks
        self._mark = None

    def lose(self, workers: IntArray | int, tasks: IntArray | int) -> None:
        """Book tasks that vanished with their workers."""
        self.lost[workers] += tasks
        self._mark = None

    def mark(self) -> Mark:
        """Return the present accounts, to be compared with later ones."""
        if self._mark is None:
            seconds = float(np.add.reduce(self.stopped_time))
            self._mark = Mark(self.stopped.copy(), self.lost.copy(), seconds)
        return self._mark

    def changes(self, since: Mark) -> Changes:
        """Return what was stopped and lost since a mark."""
        if since is self._mark:
            return self._unchanged
        now = self.mark()
        stopped, lost = now.stopped - since.stopped, now.lost - since.lost
        return Changes(stopped, lost, now.stopped_time - since.stopped_time)

    def state(self) -> State:
        """Return the accounts by the names they have in a run file."""
        return {name: getattr(self, own).copy() for name, own in _NAMES.items()}

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from saved accounts, and from what is saved of each worker's tasks."""
        saved = {own: entry(state, name, getattr(self, own)) for name, own in _NAMES.items()}
        vars(self).update(saved)
        if workers is not None:
            self.stats.restore(workers)
        self._mark = None

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.stats.take_over(workers, rows)
        for here, there in rows:
            self.stopped_time[here] = workers["unfinished"][there]
        self._mark = None


def in_flight(state: State) -> IntArray:
    """Return how many tasks each worker had begun, fate unknown, when this state of a cluster was saved."""
    if "stopping" in state:
        return state["stopping"] + state["running"]
    return (state.get("left", np.zeros(0)) > 0).astype(np.int64)
