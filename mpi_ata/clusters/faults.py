"""Scripted faults of simulated workers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import RunError

KINDS = ("die", "hang", "slow", "raise", "garbage")
GARBAGE = ("nan", "inf", "shape", "seconds")


@dataclass(frozen=True)
class Fault:
    """A fault that happens to one worker at a given time on the virtual clock.

    die: it vanishes.  hang: for `duration` it does nothing, as after SIGSTOP.  slow: for `duration` all that
    it does takes `factor` times as long.  raise: the next task begun raises an error, or the next order where
    that comes back as a whole.  garbage: its next result is `what`: "nan", "inf", of another "shape", or with
    absurd "seconds".
    """

    time: float
    worker: int
    kind: str
    duration: float = math.inf
    factor: float = 10.0
    what: str = "nan"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(KINDS)}")
        if self.what not in GARBAGE:
            raise ValueError(f"what={self.what!r} must be one of {', '.join(GARBAGE)}")
        if not (self.time >= 0 and self.duration > 0 and 0 < self.factor < math.inf):
            raise ValueError(f"{self}: time must be at least 0, duration and factor above 0")

    @property
    def end(self) -> float:
        """Return when it is over."""
        return self.time + self.duration


class FaultScript:
    """The faults to come, and the condition that the past ones have left the workers in."""

    def __init__(self, n: int, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if not 0 <= fault.worker < n:
                raise ValueError(f"{fault}: worker must be from 0 to {n - 1}")
        self._n, self._faults = n, sorted(faults, key=lambda fault: (fault.time, fault.worker))
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Start at a time; faults under way then still are, except for tasks that were to fail."""
        self.asleep_since = np.full(self._n, np.inf)
        self.asleep_until = np.full(self._n, -np.inf)
        self._slow: list[Fault] = []
        self._raising: set[int] = set()  # workers whose next task raises
        self._armed: set[int] = set()  # workers whose present task will
        self._garbage: dict[int, str] = {}
        self._coming = [fault for fault in reversed(self._faults) if fault.time >= now]
        for fault in self._faults:
            if fault.time < now < fault.end and fault.kind in ("hang", "slow"):
                self._affect(fault)
        self._plan()

    def __bool__(self) -> bool:
        return bool(self._faults)

    def deaths(self) -> list[Fault]:
        """Return all faults by which a worker dies."""
        return [fault for fault in self._faults if fault.kind == "die"]

    def strike(self, due: Array) -> tuple[Fault, float]:
        """Let the next fault happen, and return by how much it delays its worker, who is due at due[worker].

        Workers without an order are due at infinity.
        """
        ended = [fault for fault in self._slow if fault.end == self.next]
        if ended:
            fault, slower = ended[0], 1.0 / ended[0].factor
            self._slow.remove(fault)
        else:
            fault = self._coming.pop()
            slower = fault.factor if fault.kind == "slow" else 1.0
        asleep_until = self.asleep_until.item(fault.worker)
        begins = max(asleep_until, self.next)  # when it does, or would do, something again
        if not ended:
            self._affect(fault)
        self._plan()
        slept = max(self.asleep_until.item(fault.worker) - begins, 0.0) if fault.kind == "hang" else 0.0
        remaining = due.item(fault.worker) - begins
        return fault, slept + (remaining * (slower - 1.0) if math.isfinite(remaining) else 0.0)

    def _affect(self, fault: Fault) -> None:
        worker = fault.worker
        if fault.kind == "hang":
            if self.asleep_until[worker] < fault.time:
                self.asleep_since[worker] = fault.time
            self.asleep_until[worker] = max(self.asleep_until[worker], fault.end)
        elif fault.kind == "slow":
            self._slow.append(fault)
        elif fault.kind == "raise":
            self._raising.add(worker)
        elif fault.kind == "garbage":
            self._garbage[worker] = fault.what

    def _plan(self) -> None:
        ends = [fault.end for fault in self._slow]
        self.next = min([*ends, *(fault.time for fault in self._coming[-1:])], default=math.inf)

    def slowness(self, worker: int) -> float:
        """Return how many times as long as usual a worker takes for everything."""
        return math.prod(fault.factor for fault in self._slow if fault.worker == worker)

    def begin_tasks(self, workers: IntArray) -> None:
        """Note that these workers begin what they will deliver next."""
        for worker in self._raising.intersection(workers.tolist()):
            self._raising.remove(worker)
            self._armed.add(worker)

    def check_task(self, worker: int, round: int) -> None:
        """Raise an error if a worker's task is to fail."""
        if worker in self._armed:
            self._armed.remove(worker)
            raise RunError(
                f"a task of worker {worker} failed in round {round}: scripted on the virtual clock"
            )

    def delays(self, workers: IntArray, seconds: Array, began: Array) -> Array:
        """Return how much later than usual these workers finish what takes `seconds`."""
        slowness = np.array([self.slowness(worker) for worker in workers.tolist()])
        return seconds * (slowness - 1.0) + np.maximum(self.asleep_until[workers] - began, 0.0)

    def hangs(self, worker: int, now: float) -> bool:
        """Return whether a worker does nothing at the moment."""
        return bool(self.asleep_until[worker] > now)

    def progress(self, worker: int, began: float, now: float) -> float:
        """Return the seconds of work that a worker has done since it began; negative if it has not begun."""
        until = self.asleep_since.item(worker) if self.hangs(worker, now) else now
        return (until - began) / self.slowness(worker)

    def garbled(self, worker: int, result: Array, seconds: list[float]) -> tuple[Array, list[float]]:
        """Return what a worker reports instead of this result, if it is to report garbage."""
        what = self._garbage.pop(worker, "")
        if what == "shape":
            return result[..., :-1], seconds
        if what == "seconds":
            return result, [-1.0, *seconds[1:]]
        return (np.full_like(result, float(what)), seconds) if what else (result, seconds)
