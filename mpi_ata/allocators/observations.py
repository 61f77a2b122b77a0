"""What was observed in a round, gathered: learning from all of it at once is faster than one by one."""

from collections.abc import Sequence

import numpy as np

from mpi_ata.arrays import Array, IntArray


class Observations:
    """The finished and stopped tasks since they were last taken."""

    def __init__(self, overhead: bool) -> None:
        self.overhead = overhead  # whether the overhead of orders counts as time of their tasks
        self.finished: list[tuple[int, Sequence[float]]] = []
        self.stopped: list[tuple[int, float]] = []

    def add(self, worker: int, seconds: Sequence[float], stopped: Sequence[float], overhead: float) -> None:
        """Add what one worker did."""
        if len(seconds):
            more = overhead / len(seconds) if self.overhead else 0.0
            self.finished.append((worker, [x + more for x in seconds] if more else seconds))
        if len(stopped):
            self.stopped.append((worker, sum(stopped)))

    def clear(self) -> None:
        """Forget what was taken."""
        self.finished, self.stopped = [], []

    def finished_tasks(self) -> tuple[IntArray, Array]:
        """Return worker and seconds of each finished task."""
        counts = [len(seconds) for _, seconds in self.finished]
        workers = np.repeat(np.array([worker for worker, _ in self.finished], np.int64), counts)
        return workers, np.array([x for _, seconds in self.finished for x in seconds], np.float64)

    def stopped_tasks(self) -> tuple[IntArray, Array]:
        """Return worker and seconds of the task that was stopped, of workers that had begun one."""
        begun = {worker: seconds for worker, seconds in self.stopped if seconds > 0.0}
        return np.array(list(begun), np.int64), np.array(list(begun.values()), np.float64)

    def blocked_workers(self) -> list[int]:
        """Return workers whose order was stopped before it began: a task stopped earlier was still running.

        One that finished a task of the order had begun it, and was stopped at the very end of that task.
        """
        worked = {worker for worker, _ in self.finished}
        return [worker for worker, seconds in self.stopped if seconds <= 0.0 and worker not in worked]
