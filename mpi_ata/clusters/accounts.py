"""The accounts of a cluster: what became of each worker's tasks, and how long they took."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, IntArray, State, entry

SAMPLE = 256  # task times stored per worker, at most
ROOM = 1 << 18  # and for all workers together
FOLD = 1024  # arrivals added up at once: one by one would cost more than simulating them
_GOLDEN, _MIX1, _MIX2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)

Delivery = tuple[int, list[float], float]  # one arrival: its worker, the seconds of its tasks, its overhead


class TaskTimeStats:
    """Sums over the finished tasks of each worker; `times` holds a uniform sample of their seconds."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._columns: State = {
            "tasks": np.zeros(n, np.int64),
            "seconds": np.zeros(n),
            "squares": np.zeros(n),
            "least": np.full(n, np.inf),
            "arrivals": np.zeros(n, np.int64),
            "overhead": np.zeros(n),  # of those arrivals
            "times": np.full((n, max(1, min(SAMPLE, ROOM // n))), np.nan),
        }
        # The two longest times of each worker so far; after a break, of those in the sample.
        self.largest: Array = np.zeros(n)
        self.second: Array = np.zeros(n)
        self.pending: list[Delivery] = []  # arrivals not yet added up
        self._log: list[Delivery] | None = None  # those of the log that were added up; None: there is no log
        self._logged = 0  # how many of the pending ones came before begin_log()

    def add(self, worker: int, seconds: list[float], overhead: float = 0.0) -> None:
        """Add one arrival."""
        self.pending.append((worker, seconds, overhead))
        if len(self.pending) >= FOLD:
            self.fold()

    def state(self) -> State:
        """Return the sums so far, by name."""
        self.fold()
        return self._columns

    def begin_log(self) -> None:
        """Log what is delivered from now on, for take_log()."""
        self._log, self._logged = [], len(self.pending)

    def take_log(self) -> list[Delivery] | None:
        """Return what was delivered since begin_log(), and end the log; None if there is no log."""
        found = None if self._log is None else self._log + self.pending[self._logged :]
        self._log = None
        return found

    def pooled_means(self) -> Array:
        """Return the mean seconds of a task of each worker, or of all where it has done none."""
        tasks, seconds = self.state()["tasks"], self._columns["seconds"]
        pooled = seconds.sum() / tasks.sum() if tasks.any() else 1.0
        means: Array = np.where(tasks > 0, seconds / np.maximum(tasks, 1), pooled)
        return means

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self._columns = {name: entry(state, name, column) for name, column in self._columns.items()}
        self._recall_longest()

    def take_over(self, state: State, rows: list[tuple[int, int]]) -> None:
        """Start from another run's sums: `rows` pairs a worker here with its row there."""
        here, there = np.array(rows, np.int64).reshape(-1, 2).T
        for name, column in self._columns.items():
            width = column.shape[1:] and min(column.shape[1], state[name].shape[1])
            columns = (slice(None, width),) if width else ()
            column[here, *columns] = state[name][there, *columns]
        self._recall_longest()

    def fold(self) -> None:
        """Add up the pending arrivals."""
        if not self.pending:
            return
        new, self.pending = self.pending, []
        if self._log is not None:
            self._log += new[self._logged :]
            self._logged = 0
        workers = np.array([worker for worker, _, _ in new])
        counts = np.array([len(seconds) for _, seconds, _ in new])
        seconds = np.array([second for _, several, _ in new for second in several])
        own = self._columns
        np.add.at(own["arrivals"], workers, 1)
        np.add.at(own["overhead"], workers, [overhead for _, _, overhead in new])
        workers = np.repeat(workers, counts)
        number = own["tasks"][workers] + _counted(workers)
        np.add.at(own["tasks"], workers, 1)
        np.add.at(own["seconds"], workers, seconds)
        np.add.at(own["squares"], workers, seconds**2)
        np.minimum.at(own["least"], workers, seconds)
        self._note_longest(workers, seconds)
        self._sample(workers, number, seconds)

    def _note_longest(self, workers: npt.NDArray[np.int64], seconds: Array) -> None:
        """Keep the two longest times: first the longest of all, then the longest of the others."""
        before = self.largest.copy()
        np.maximum.at(self.largest, workers, seconds)
        others = seconds < self.largest[workers]
        np.maximum.at(self.second, workers[others], seconds[others])
        np.maximum(self.second, np.where(before < self.largest, before, 0.0), out=self.second)

    def _recall_longest(self) -> None:
        """Take the two longest times from the sample."""
        times = np.sort(np.nan_to_num(self._columns["times"]), axis=1)
        self.largest, self.second = times[:, -1].copy(), times[:, -min(2, times.shape[1])].copy()

    def _sample(self, workers: npt.NDArray[np.int64], number: npt.NDArray[np.int64], seconds: object) -> None:
        """Algorithm R: the c-th task draws one of c positions, and is stored if that lies in the sample."""
        times = self._columns["times"]
        size = times.shape[1]
        position = np.where(number < size, number, _hashed(workers, number) % (number + 1).astype(np.uint64))
        stored = position < size
        times[workers[stored], position[stored].astype(np.int64)] = np.asarray(seconds)[stored]


def _counted(workers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each entry occurred before."""
    order = np.argsort(workers, kind="stable")
    ordered = workers[order]
    first = np.searchsorted(ordered, ordered)
    before = np.empty_like(workers)
    before[order] = np.arange(len(workers)) - first
    return before


def _hashed(workers: npt.NDArray[np.int64], number: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return numbers that look random but depend on worker and task alone (SplitMix64)."""
    z = (number.astype(np.uint64) << np.uint64(24)) + workers.astype(np.uint64)
    z = (z + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


_COLUMNS = ("worker_time", "undelivered", "undelivered_time")  # in a run file


class Mark(NamedTuple):
    """What was stopped and lost up to some moment, or between two."""

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
        self._unchanged = Mark(nothing, nothing, 0.0)

    def deliver(self, worker: int, seconds: list[float], spent: float, overhead: float = 0.0) -> None:
        """Book the tasks of one arrival, which took `spent` seconds in all."""
        self.worker_time[worker] += spent
        pending = self.stats.pending  # not through stats.add: a call costs as much as the rest of this
        pending.append((worker, seconds, overhead))
        if len(pending) >= FOLD:
            self.stats.fold()

    def columns(self) -> tuple[Any, list[Delivery]]:
        """Return what deliver() writes to, for the arrivals of a round: their seconds and themselves.

        The worker time as its memory, which is twice as fast as the array.
        """
        if len(self.stats.pending) >= FOLD:
            self.stats.fold()
        return self.worker_time.data, self.stats.pending

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

    def changes(self, since: Mark) -> Mark:
        """Return what was stopped and lost since a mark."""
        if since is self._mark:
            return self._unchanged
        now = self.mark()
        stopped, lost = now.stopped - since.stopped, now.lost - since.lost
        return Mark(stopped, lost, now.stopped_time - since.stopped_time)

    def state(self) -> State:
        """Return the accounts by the names they have in a run file."""
        columns = self.worker_time, self.stopped, self.stopped_time
        return {name: column.copy() for name, column in zip(_COLUMNS, columns, strict=True)}

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from saved accounts, and from what is saved of each worker's tasks."""
        present = self.state()
        columns = [entry(state, name, present[name]) for name in _COLUMNS]
        self.worker_time, self.stopped, self.stopped_time = columns
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
