"""What tasks and orders took in some rounds of a run on ranks, to be replayed later; bounded in size."""

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.clusters.stats import Delivery

ROWS = 1024  # rounds that are kept, at most; then every other one is dropped
TASKS = 1 << 16  # and their tasks

Row = tuple[int, float, list[Delivery]]  # round, its length, and what was delivered in it


class RoundSample:
    """Rounds as they were, evenly spaced over the run."""

    def __init__(self) -> None:
        self._stride, self._tasks = 1, 0
        self._rows: list[Row] = []

    def due(self, round: int) -> bool:
        """Return whether this round is one of those to keep."""
        return round % self._stride == 0

    def add(self, round: int, duration: float, deliveries: list[Delivery]) -> None:
        """Keep a round."""
        self._rows.append((round, duration, deliveries))
        self._tasks += _tasks(deliveries)
        while len(self._rows) > ROWS or (self._tasks > TASKS and len(self._rows) > 1):
            self._stride *= 2
            self._rows = [row for row in self._rows if self.due(row[0])]
            self._tasks = sum(_tasks(deliveries) for _, _, deliveries in self._rows)

    def state(self) -> State:
        """Return the rows as columns: of rounds, of what was delivered in them, and of its tasks."""
        deliveries = [each for _, _, several in self._rows for each in several]
        seconds = [second for _, several, _ in deliveries for second in several]
        return {
            "round": np.array([round for round, _, _ in self._rows], np.int64),
            "duration": np.array([duration for _, duration, _ in self._rows], np.float64),
            "deliveries": np.array([len(several) for _, _, several in self._rows], np.int64),
            "worker": np.array([worker for worker, _, _ in deliveries], np.int64),
            "overhead": np.array([overhead for _, _, overhead in deliveries], np.float64),
            "tasks": np.array([len(several) for _, several, _ in deliveries], np.int64),
            "seconds": np.array(seconds, np.float64),
        }

    def restore(self, state: State) -> None:
        """Continue the sample of a resumed run."""
        if not state or not len(state["round"]):
            return
        seconds = np.split(state["seconds"], np.cumsum(state["tasks"])[:-1])
        columns = zip(state["worker"].tolist(), seconds, state["overhead"].tolist(), strict=True)
        deliveries = [(worker, several.tolist(), overhead) for worker, several, overhead in columns]
        ends = np.cumsum(state["deliveries"]).tolist()
        self._rows = [
            (round, duration, deliveries[begin:end])
            for round, duration, begin, end in zip(
                state["round"].tolist(), state["duration"].tolist(), [0, *ends], ends, strict=False
            )
        ]
        self._tasks = len(state["seconds"])
        self._stride = int(np.diff(state["round"]).min(initial=self._rows[0][0]))


def _tasks(deliveries: list[Delivery]) -> int:
    return sum(len(seconds) for _, seconds, _ in deliveries)
