"""Who did how many tasks when: the finished tasks of each worker at some rounds, bounded in size."""

import numpy as np

from mpi_ata.arrays import IntArray, State

ROWS = 128  # rounds that are kept, at most; then every other one is dropped
COLUMNS = 1024  # workers that are counted one by one; more are added up in groups of neighbours


def group_size(n: int) -> int:
    """Return how many of n workers share a column."""
    return -(-n // COLUMNS)


class TaskMap:
    """The number of tasks that each worker has finished up to some rounds, evenly spaced over the run."""

    def __init__(self, n: int) -> None:
        self._first = np.arange(0, n, group_size(n))  # worker of each column
        self._n, self._stride = n, 1
        self._rows: list[tuple[int, float, IntArray]] = []  # round, clock, tasks

    def due(self, round: int) -> bool:
        """Return whether this round is one of those to keep."""
        return round % self._stride == 0

    def add(self, round: int, clock: float, tasks: IntArray) -> None:
        """Keep the number of tasks that each worker has finished by the end of a round."""
        self._rows.append((round, clock, self._grouped(tasks)))
        if len(self._rows) > ROWS:
            self._stride *= 2
            self._rows = [row for row in self._rows if self.due(row[0])]

    def _grouped(self, tasks: IntArray) -> IntArray:
        return tasks.copy() if len(self._first) == self._n else np.add.reduceat(tasks, self._first)

    def state(self) -> State:
        """Return the rows as columns."""
        rounds, clocks, tasks = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        return {
            "round": np.array(rounds, np.int64),
            "clock": np.array(clocks, np.float64),
            "tasks": np.array(tasks, np.int64).reshape(-1, len(self._first)),
        }

    def restore(self, state: State, tasks: IntArray) -> None:
        """Continue the map of a resumed run, unless it has other workers: these have done fewer tasks."""
        saved = state.get("tasks", np.zeros((0, 0), np.int64))
        if not len(saved) or saved.shape[1] != len(self._first) or (saved[-1] > self._grouped(tasks)).any():
            return
        self._rows = list(zip(state["round"].tolist(), state["clock"].tolist(), saved, strict=True))
        self._stride = int(np.diff(state["round"]).min(initial=self._rows[0][0]))
