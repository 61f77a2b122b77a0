"""Evaluation in parts: workers that are free divide the parts among them, by their speed."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import EMPTY, EVALUATE, EVALUATED, FAILED, Message
from mpi_ata.clusters.connections import Connections
from mpi_ata.errors import RunError

SLOW = 3.0  # times as long as the latest answer took: then another worker evaluates the same parts
AT_LEAST = 1.0  # seconds more than that
_numbers = count(1)  # negative for evaluations: a late answer is not taken for that of a task


class PartialEvaluation:
    """One evaluation at x: who evaluates which parts, and what is in."""

    def __init__(self, connections: Connections, sharing: set[int], x: Array, longest: float = 0.0) -> None:
        self.longest = longest  # seconds per part of the slowest answer, earlier evaluations included
        self._connections, self._sharing, self._x = connections, sharing, x
        self._ranges: dict[int, range] = {}  # by number of the order
        self._busy: dict[int, range] = {}  # by worker
        self._waiting: list[range] = []  # without a worker
        self._copied: set[range] = set()  # that a second worker was given
        self._found: dict[range, list[float]] = {}
        self._began = self._latest = time.perf_counter()

    def divide(self, parts: range, workers: Sequence[int], speeds: Array) -> None:
        """Give each worker a range of parts in proportion to its speed."""
        ends = np.rint(np.cumsum(speeds) / speeds.sum() * len(parts)).astype(int).tolist()
        for worker, begin, end in zip(workers, [0, *ends], ends, strict=False):
            if begin < end:
                self._order(worker, parts[begin:end])

    def _order(self, worker: int, parts: range) -> None:
        number, shared, slot = -next(_numbers), self._connections.shared, NOWHERE
        self._ranges[number] = self._busy[worker] = parts
        if worker in self._sharing and shared is not None:
            self._x = shared.put(self._x)
            slot = shared.number_of(self._x)
        payload, to = self._x if slot == NOWHERE else EMPTY, self._connections.rank[worker]
        channel = self._connections.channel
        channel.send(to, EVALUATE, number, parts.start, parts.stop, payload=payload, x_slot=slot)
        self._connections.ring[worker]()

    def take(self, worker: int, message: Message, name: str) -> bool:
        """Return whether a message belongs to this evaluation; if so, keep what it brings."""
        if message.order not in self._ranges or message.kind not in (EVALUATED, FAILED):
            return False
        if message.kind == FAILED:
            raise RunError(f"{name}: {message.payload.tobytes().decode()}")
        parts, self._latest = self._ranges[message.order], time.perf_counter()
        self._found[parts] = message.seconds
        self._busy.pop(worker, None)
        self.longest = max(self.longest, (self._latest - self._began) / len(parts))
        return True

    def missing(self) -> bool:
        """Return whether some parts are not in yet."""
        return not set(self._ranges.values()) <= set(self._found)

    def redo(self, free: set[int]) -> None:
        """Give the parts of lost and of very slow workers to free ones."""
        for worker in set(self._busy) - free:
            self._waiting.append(self._busy.pop(worker))
        if self._found and time.perf_counter() - self._began > AT_LEAST + SLOW * (self._latest - self._began):
            copied = set(self._busy.values()) - self._copied
            self._copied |= copied
            self._waiting += copied
        self._waiting = [parts for parts in self._waiting if parts not in self._found]
        for worker in sorted(free - set(self._busy))[: len(self._waiting)]:
            self._order(worker, self._waiting.pop())

    def overdue(self, factor: float, floor: float) -> bool:
        """Return whether what is missing takes `factor` times as long as any part has taken."""
        most = max((len(parts) for parts in self._ranges.values() if parts not in self._found), default=0)
        longest = factor * self.longest * most if self.longest else math.inf
        return time.perf_counter() - self._began > max(longest, floor)

    def do_missing(self, evaluated: Callable[[int], list[float]]) -> None:
        """Evaluate in this process what is missing."""
        for parts in set(self._ranges.values()) - set(self._found):
            self._found[parts] = [value for part in parts for value in evaluated(part)]

    def results(self) -> list[float]:
        """Return what was computed, in the order of the parts."""
        return [value for parts in sorted(self._found, key=lambda r: r.start) for value in self._found[parts]]
