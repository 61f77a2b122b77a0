"""What ATA-Auto knows about its workers: speeds and their changes, who was idle, and what stops cost."""

import logging
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.auto.suspects import Suspects
from mpi_ata.allocators.auto.task_model import TaskModel
from mpi_ata.allocators.change_detection import ChangeDetector, Since, SpeedChange
from mpi_ata.arrays import Array, IntArray, State, entry

log = logging.getLogger("mpi_ata")

COSTLY = 0.5  # of what stopped tasks had left: from here on a stop is nearer to a whole task than to none
FEW_STOPS = 4  # by so many, a single slow one does not decide
_SAVED = ("heard", "rounds", "overrun", "rest", "stoppable")


class Knowledge:
    """Gathers the observations of a round and learns from all of them at once, which is faster."""

    def __init__(self, n: int, overhead: bool) -> None:
        self.overhead = overhead  # whether the overhead of orders counts as time of their tasks
        self.model = TaskModel(n)
        self.heard = np.zeros(n, np.int64)  # the last round in which each worker did something
        self.rounds = np.zeros(n)  # in which each worker did something
        self.overrun = np.zeros(n)  # seconds that each spent on stopped tasks after the stop
        self.rest = np.zeros(())  # seconds that all of these tasks were expected to have left
        self.stoppable = np.array(True)  # whether stopped tasks end before they are done
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

    def observe_overrun(self, worker: int, seconds: float) -> None:
        """Note how much longer a worker has been at a stopped task."""
        self.overrun[worker] += seconds

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
            self._learn_stopped(k)
        self._finished, self._stopped = {}, []
        if self.stoppable and self.overrun.sum() > COSTLY * self.rest and self.model.stops.sum() >= FEW_STOPS:
            self._give_up_stopping()

    def _learn_finished(self, k: int) -> None:
        workers = np.array(list(self._finished), np.int64)
        counts = np.array([len(seconds) for seconds in self._finished.values()])
        seconds = np.array([x for each in self._finished.values() for x in each], np.float64)
        recovered = self._recovered(np.repeat(workers, counts), seconds)
        self.model.learn(workers, counts, seconds)
        self._note_round(k, workers)
        for worker, x in recovered:
            self.model.begin_again(worker, 1.0, x)
            self.suspects.add(worker, k, pause=1)

    def _learn_stopped(self, k: int) -> None:
        begun = {worker: seconds for worker, seconds in self._stopped if seconds > 0.0}
        workers, seconds = np.array(list(begun), np.int64), np.array(list(begun.values()), np.float64)
        self.model.learn_stopped(workers, seconds)
        self._note_round(k, workers)
        mu, sd, _ = self.model.speeds(workers)
        self.rest += np.maximum(mu - seconds, sd).sum()

    def _note_round(self, k: int, workers: IntArray) -> None:
        """Note that these workers did something in round k."""
        self.rounds[workers] += self.heard[workers] != k
        self.heard[workers] = k

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

    def _give_up_stopping(self) -> None:
        self.stoppable = np.array(False)
        log.warning(
            "ata-auto: stopped tasks run to their end, or nearly so: spares do not pay; "
            'continuing as with spares = "none"'
        )

    def delays(self, workers: IntArray) -> Array:
        """Return how long workers are still busy with a stopped task when a round begins, on average."""
        return np.asarray(np.maximum(self.overrun[workers], 0.0) / np.maximum(self.rounds[workers], 1.0))

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
