"""What ATA-Auto knows about its workers: speeds and their changes, who was idle, and what stops cost."""

import logging
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.auto.suspects import Suspects
from mpi_ata.allocators.auto.task_model import TaskModel
from mpi_ata.allocators.change_detection import ChangeDetector, Since, SpeedChange
from mpi_ata.arrays import Array, IntArray, State, entry

log = logging.getLogger("mpi_ata")

_SAVED = ("heard", "blocked")


class Knowledge:
    """Gathers the observations of a round and learns from all of them at once, which is faster."""

    def __init__(self, n: int, overhead: bool) -> None:
        self.overhead = overhead  # whether the overhead of orders counts as time of their tasks
        self.model = TaskModel(n)
        self.heard = np.zeros(n, np.int64)  # the last round in which each worker did something
        self.blocked = np.zeros(n)  # rounds in which each worker was still busy with a stopped task
        self.speed_changes: list[SpeedChange] = []  # noticed since they were last cleared
        self.suspects = Suspects(n)
        self._detector = ChangeDetector(n)
        self._finished: dict[int, list[float]] = {}  # seconds of each task, by worker
        self._stopped: list[tuple[int, float]] = []

    def observe(
        self, k: int, worker: int, seconds: Sequence[float], stopped: Sequence[float], overhead: float
    ) -> None:
        """Note what a worker did in round k."""
        if len(stopped):
            self._stopped.append((worker, sum(stopped)))
        if not len(seconds):
            return
        if self.overhead and overhead:
            seconds = [x + overhead / len(seconds) for x in seconds]
        self._finished.setdefault(worker, []).extend(seconds)
        if (since := self._detector.observe(worker, seconds)) is not None:
            self.learn(k)
            self._forget(k, worker, since)

    def _forget(self, k: int, worker: int, since: Since) -> None:
        """Forget what a worker did before its speed changed."""
        before = self.model.T.item(worker) / self.model.N.item(worker)
        self.model.begin_again(worker, since.tasks, since.seconds)
        factor = since.seconds / since.tasks / before
        self.speed_changes.append(SpeedChange(worker, factor))
        if factor > 1.0:
            self.suspects.add(worker, k)

    def learn(self, k: int) -> None:
        """Learn from what was observed in round k."""
        if self._finished:
            self._learn_finished(k)
        if self._stopped:
            begun = {worker: seconds for worker, seconds in self._stopped if seconds > 0.0}
            workers = np.array(list(begun), np.int64)
            self.model.learn_stopped(workers, np.array(list(begun.values()), np.float64))
            self.heard[workers] = k
            self._note_blocked()
        self._finished, self._stopped = {}, []

    def _learn_finished(self, k: int) -> None:
        workers = np.array(list(self._finished), np.int64)
        counts = np.array([len(seconds) for seconds in self._finished.values()])
        seconds = np.array([x for each in self._finished.values() for x in each], np.float64)
        recovered = self._recovered(np.repeat(workers, counts), seconds)
        self.model.learn(workers, counts, seconds)
        self.heard[workers] = k
        for worker, x in recovered:
            self.model.begin_again(worker, 1.0, x)
            self.suspects.add(worker, k, pause=1)

    def _recovered(self, workers: IntArray, seconds: Array) -> list[tuple[int, float]]:
        """Return suspects with a task that took less than their slow mean by a deviation, and its seconds.

        Waiting for more such tasks would take long, since suspects are rarely tried; a mistake costs little.
        """
        found = self.suspects.among(workers)
        if not len(found):
            return []
        mu, sd, _ = self.model.speeds(workers[found])
        fast = found[seconds[found] < mu - sd]
        return list(zip(workers[fast].tolist(), seconds[fast].tolist(), strict=True))

    def _note_blocked(self) -> None:
        """Note whose order was stopped before it began, since a task stopped earlier was still running.

        One that finished a task of the order had begun it, and was stopped at the very end of that task.
        """
        unbegun = [worker for worker, seconds in self._stopped if seconds <= 0.0]
        workers = [worker for worker in unbegun if worker not in self._finished]
        if workers and not self.blocked.any():
            log.warning(
                "ata-auto: tasks of worker %d kept running after they had been stopped; "
                "spares will be ordered only where they still pay off",
                workers[0],
            )
        self.blocked[workers] += 1.0

    def delays(self, workers: IntArray, length: float) -> Array:
        """Return how long stopped workers are still busy when a round of some length begins.

        The estimate is `length` times the share of stops after which a worker was not back for a whole round.
        """
        return length * self.blocked[workers] / np.maximum(self.model.stops[workers], 1.0)

    def state(self) -> State:
        """Return all that was learned."""
        own = {name: getattr(self, name).copy() for name in _SAVED}
        return own | self.model.state() | self._detector.state() | self.suspects.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        saved = {name: entry(state, name, getattr(self, name)) for name in _SAVED}
        self.model.restore(state)
        self._detector.restore(state)
        self.suspects.restore(state)
        vars(self).update(saved)

    def inherit(self, known: State) -> None:
        """Add the samples of earlier rounds."""
        seconds = known["seconds"] + (known["overhead"] if self.overhead else 0.0)
        self.model.inherit(known["tasks"], seconds, known["squares"], known["unfinished"])
        self._detector.inherit(known, self.overhead)
