"""Which task a worker does next: its number, its index in shared draws, and how long it lasts."""

from collections.abc import Callable
from typing import Any

from mpi_ata.clusters.channel import Message
from mpi_ata.clusters.expected import ExpectedTasks
from mpi_ata.clusters.interface import announce
from mpi_ata.problems import AnyProblem, Task, task_streams
from mpi_ata.times import DrawnTimes


class TaskSequence:
    """The tasks of one worker, numbered within each round; `poll_stop` tells a task whether to stop."""

    def __init__(
        self,
        problem: AnyProblem,
        worker: int,
        seed: int,
        times: DrawnTimes | None,
        poll_stop: Callable[[], bool] | None,
    ) -> None:
        self._problem: Any = problem
        self._worker, self._streams, self._times = worker, task_streams(seed), times
        self._poll_stop = poll_stop
        self._expected = ExpectedTasks(self._streams, worker) if hasattr(problem, "expect") else None
        self._draws: list[int] = []  # the indices of the order's tasks, where the problem shares draws
        self._round, self._number = -1, 0  # of the next task

    def first(self) -> Task:
        """Return the task that is done before the clock starts."""
        return Task(self._streams, 0, self._worker, 0)

    def begin(self, order: Message) -> None:
        """Begin the tasks of an order."""
        if order.round != self._round:
            self._round, self._number = order.round, 0
        self._draws = [int(index) for index in order.seconds] if order.seconds else []

    def announce(self, count: int) -> None:
        """Let the problem prepare for the tasks of an order, if it can; that is not part of any task."""
        if self._expected is not None:
            tasks = self._expected.of_order(self._round, self._number, count, self._draws)
            announce(self._problem, tasks)

    def take(self, count: int) -> list[Task]:
        """Return the next tasks of the order; they have the same numbers until advance()."""
        fixed, number = (self._streams, self._round, self._worker), self._number
        if not self._draws:
            return [Task(*fixed, number + more, self._poll_stop) for more in range(count)]
        indices, self._draws = self._draws[:count], self._draws[count:]
        return [Task(*fixed, number + more, self._poll_stop, index) for more, index in enumerate(indices)]

    def drawn_times(self, count: int) -> list[float]:
        """Return how long the next tasks last; nothing where times are not drawn."""
        if self._times is None:
            return []
        return self._times.of(self._worker, self._round, self._number, count)

    def advance(self, count: int) -> None:
        """Note that this many tasks have begun and are over."""
        self._number += count
