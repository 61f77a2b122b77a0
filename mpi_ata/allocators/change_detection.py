"""Detects that a worker's speed has changed, by cumulative sums (CUSUM) of its task times.

The logarithm of a time is watched: at any speed, a worker that becomes c times slower shifts it by ln c, and
single tasks that take very long weigh little.  The tasks of an order are compared with mean and standard
deviation of those before, in a way that makes the differences e independent, with mean 0 and the number of
tasks as their variance, as long as nothing changes (recursive residuals).  For some shifts s, the log-
likelihood ratios of a shift, s e - tasks s^2 / 2, are added up; a sum starts again at 0 whenever it would
fall below.  A change lets it grow; by chance, it exceeds h with a probability of about exp(-h) at each task.
At h = 2 ln(tasks of all workers) that is 1 / tasks^2, whose sum over all tasks is finite: without changes
there are few false alarms, however long a run is.
"""

from collections.abc import Sequence
from math import fsum, log, sqrt
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import State, entry

# In standard deviations, slower or faster.  Under the paper's laws that deviation is 0.42, so the small shift
# is a worker that takes 1.2 times as long, the large one 1.5 times.  By chance, sums for a large shift last
# for a few tasks only, so they also show when a large change happened.
SHIFTS = (0.4, -0.4, 1.0, -1.0)
CLIP = 3.0  # standard deviations that a task counts at most: several are needed for an alarm
ENOUGH = 10  # tasks that give the standard deviation within about a quarter; before that none is judged
# The noise counts as 10 % at least, so that no change below 2 %, half of the small shift, gives an alarm:
# exploring a worker again would cost more than it gains.
LEAST_NOISE = 0.1
# The tasks that earlier runs count for at most: their sums give mean and deviation of the logarithms only
# roughly, and with this weight an error of half a deviation is averaged out before it leads to an alarm.
WEIGHT = 100
SMALL = 0.1  # change of speed that is not worth a note
SHORTEST = 1e-12  # seconds, below the resolution of any clock, so that 0 has a logarithm

_SUMS = tuple((3 * j, shift) for j, shift in enumerate(SHIFTS, 1))  # where the sums stand in a worker's row
_INHERITED = ("tasks", "seconds", "squares", "least", "overhead")


class Since(NamedTuple):
    """What a worker has done since its speed changed."""

    tasks: int
    seconds: float


class SpeedChange(NamedTuple):
    """A change that was noticed: the worker's task times are now `factor` times those before."""

    worker: int
    factor: float

    @property
    def notable(self) -> bool:
        """Return whether the change is worth a note to the user."""
        return self._times > 1 + SMALL

    @property
    def _times(self) -> float:
        return max(self.factor, 1 / self.factor)

    def after(self, earlier: "SpeedChange") -> "SpeedChange":
        """Return this change and one before it as one: they may cancel each other."""
        return SpeedChange(self.worker, earlier.factor * self.factor)

    def __str__(self) -> str:
        now, digits = "slower" if self.factor > 1 else "faster", 1 if self._times < 9.95 else 0
        return f"worker {self.worker} is now {self._times:,.{digits}f} × {now} than before"


class ChangeDetector:
    """Watches the times of each worker's finished tasks."""

    def __init__(self, n: int) -> None:
        self._seen = 0  # tasks of all workers
        # Of each worker since its last change: tasks, mean and squared deviations of the logarithms; then for
        # each shift its sum, with tasks and seconds since that was 0.  One row is read and written at once.
        self._rows = np.zeros((n, 3 + 3 * len(SHIFTS)))

    def observe(self, worker: int, seconds: Sequence[float]) -> Since | None:
        """Judge the times of finished tasks, and return those since a change if it is noticed now."""
        row, m = self._rows[worker].tolist(), len(seconds)
        N, mean, squares = row[:3]
        d = [log(x if x > SHORTEST else SHORTEST) - mean for x in seconds]
        self._seen += m
        if N >= ENOUGH:
            sd = max(sqrt(max(squares, 0.0) / (N - 1.0)), LEAST_NOISE)  # below 0 by rounding only
            d = _clipped(d, CLIP * sd)
            if _add(row, fsum(d) / (sd * sqrt(1.0 + m / N)), m, fsum(seconds)) > 2 * log(self._seen):
                return self._restart(worker, row)
        total = fsum(d)
        row[:3] = N + m, mean + total / (N + m), squares + fsum([x * x for x in d]) - total * total / (N + m)
        self._rows[worker] = row
        return None

    def _restart(self, worker: int, row: list[float]) -> Since:
        """Forget a worker, and return its tasks and seconds since the change: since the highest sum was 0."""
        self._rows[worker] = 0.0
        _, tasks, seconds = max(row[i : i + 3] for i, _ in _SUMS)
        return Since(int(tasks), seconds)

    def inherit(self, known: State, overhead: bool) -> None:
        """Start from sums over earlier tasks, as if the logarithms of their times were normal."""
        some = known["tasks"] > 1
        N, seconds, squares, least, more = (known[name][some] for name in _INHERITED)
        variances = np.log1p(np.maximum(N * squares / seconds**2 - 1.0, 0.0))
        logs = np.log(np.maximum(seconds / N, SHORTEST)) - variances / 2
        logs = np.maximum(logs, np.log(np.maximum(least, SHORTEST)))  # heavy tails give too low a mean
        if overhead:
            logs += np.log1p(more / seconds)
        weights = np.minimum(N, WEIGHT)
        self._rows[some, :3] = np.column_stack([weights, logs, variances * (weights - 1)])
        self._seen += int(N.sum())

    def state(self) -> State:
        """Return what is known of each worker."""
        return {"change.rows": self._rows.copy(), "change.seen": np.array(self._seen)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state; if it is that of a run which did not watch, begin to watch now."""
        if "change.rows" in state:
            rows, seen = entry(state, "change.rows", self._rows), entry(state, "change.seen", self._seen)
            self._rows, self._seen = rows, int(seen)


def _clipped(d: list[float], limit: float) -> list[float]:
    """Return the differences, none of them beyond the limit."""
    if -limit < min(d) and max(d) < limit:
        return d
    return [min(max(x, -limit), limit) for x in d]


def _add(row: list[float], e: float, tasks: int, seconds: float) -> float:
    """Add the tasks of an order to the sums in a worker's row, and return the highest."""
    highest = 0.0
    for i, shift in _SUMS:
        height = row[i] + shift * (e - tasks * shift / 2)
        if height > 0.0:
            row[i] = height
            row[i + 1] += tasks
            row[i + 2] += seconds
            highest = max(highest, height)
        elif row[i]:
            row[i : i + 3] = 0.0, 0.0, 0.0
    return highest
