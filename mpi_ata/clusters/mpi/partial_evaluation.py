"""Evaluation in parts, between rounds: workers divide the parts among them, by their speed."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.channel import FAILED, Message
from mpi_ata.clusters.mpi.engine import Ranks
from mpi_ata.errors import RunError

SLOW = 3.0  # times as long as the latest answer took: then another worker evaluates the same parts
SLOW_SECONDS = 1.0  # at least so much longer than that
SHORTEST_SECONDS = 1e-9  # of a task, to compare speeds


class PartialEvaluation:
    """One evaluation at x: who evaluates which parts, and what is in.

    `longest` are the seconds per part of the slowest answer so far, earlier evaluations included.
    """

    def __init__(self, ranks: Ranks, x: Array, longest: float, name: Callable[[int], str]) -> None:
        self.longest = longest
        self._ranks, self._x, self._name = ranks, x, name
        self._all: set[range] = set()
        self._busy: dict[int, range] = {}  # by worker
        self._waiting: list[range] = []  # without a worker
        self._copied: set[range] = set()  # that a second worker was given
        self._found: dict[range, list[float]] = {}
        self._failure = ""
        self._began = self._latest = perf_counter()

    def divide(self, parts: range, workers: Sequence[int], seconds: Array) -> None:
        """Give each worker a range of parts, in proportion to its speed; it takes this long for a task."""
        speeds = 1 / np.maximum(seconds, SHORTEST_SECONDS)
        ends = np.rint(np.cumsum(speeds) / speeds.sum() * len(parts)).astype(int).tolist()
        for worker, begin, end in zip(workers, [0, *ends], ends, strict=False):
            if begin < end:
                self._ask(worker, parts[begin:end])

    def _ask(self, worker: int, parts: range) -> None:
        self._all.add(parts)
        self._busy[worker] = parts
        self._x = self._ranks.ask(worker, self._x, parts, partial(self._take, parts))

    def _take(self, parts: range, worker: int, message: Message) -> None:
        """Keep what a worker has sent."""
        if message.kind == FAILED:
            self._failure = f"{self._name(worker)}: {message.payload.tobytes().decode()}"
            return
        values = message.payload.reshape(-1).view(np.uint8).view(np.float64)
        self._found[parts], self._latest = values.tolist(), perf_counter()
        self._busy.pop(worker, None)
        self.longest = max(self.longest, (self._latest - self._began) / len(parts))

    def missing(self) -> set[range]:
        """Return the parts that are not in yet; RunError if some could not be evaluated."""
        if self._failure:
            raise RunError(self._failure)
        return self._all.difference(self._found)

    def redo(self, free: set[int]) -> None:
        """Give the parts of lost and of very slow workers to free ones."""
        for worker in set(self._busy) - free:
            self._waiting.append(self._busy.pop(worker))
        usual = self._latest - self._began
        if self._found and perf_counter() - self._began > SLOW_SECONDS + SLOW * usual:
            copied = set(self._busy.values()) - self._copied
            self._copied |= copied
            self._waiting += copied
        self._waiting = [parts for parts in self._waiting if parts not in self._found]
        for worker in sorted(free - set(self._busy))[: len(self._waiting)]:
            self._ask(worker, self._waiting.pop())

    def overdue(self, factor: float, least: float) -> bool:
        """Return whether what is missing takes `factor` times as long as any part has taken."""
        most = max(map(len, self.missing()), default=0)
        longest = factor * self.longest * most if self.longest else math.inf
        return perf_counter() - self._began > max(longest, least)

    def do_missing(self, evaluated: Callable[[int], list[float]]) -> None:
        """Evaluate in this process what is missing."""
        for parts in self.missing():
            self._found[parts] = [value for part in parts for value in evaluated(part)]

    def results(self) -> list[float]:
        """Return what was computed, in the order of the parts."""
        return [value for parts in sorted(self._found, key=lambda r: r.start) for value in self._found[parts]]
