"""Which tasks a worker will probably do next, so that a problem can read their data ahead."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from mpi_ata.problems import Task
from mpi_ata.randomness import Streams


class ExpectedTasks:
    """The tasks of a worker's orders, and guesses at those of the next one."""

    def __init__(self, streams: Streams, worker: int) -> None:
        self._streams, self._worker = streams, worker
        self._latest: int | None = None  # the first index of the latest order, where indices are shared
        self._step = 0  # how much larger it was than that of the order before

    def of_order(self, round: int, number: int, count: int, indices: Sequence[int]) -> Iterator[Task]:
        """Return the tasks of an order, and after them as many of the next round.

        Indices of the next round are as much larger as those of this one were than those before.
        """
        if indices:
            self._step = 0 if self._latest is None else indices[0] - self._latest
            self._latest = indices[0]
        return self._tasks(round, range(number, number + count), tuple(indices))

    def _tasks(self, round: int, numbers: range, indices: tuple[int, ...]) -> Iterator[Task]:
        for number, index in zip_longest(numbers, indices):
            yield Task(self._streams, round, self._worker, number, None, index)
        if indices and self._step <= 0:
            return
        following = [index + self._step for index in indices]
        for number, later in zip_longest(range(len(numbers)), following):
            yield Task(self._streams, round + 1, self._worker, number, None, later)
