"""Laws of recorded times: each worker's times are drawn from its own sample with replacement."""

import math
from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array


class Recorded:
    """Draws each worker's times, with replacement, from its own sample.

    Worker i has samples[i]; if there are more samples than workers, the first n are used.
    """

    def __init__(self, n: int, samples: Sequence[Array], scale: float = 1.0) -> None:
        if not 1 <= n <= len(samples):
            raise ValueError(
                f"{n=} must be from 1 to {len(samples)}, the number of recorded workers; "
                "choose another number of workers"
            )
        if not scale > 0:
            raise ValueError(f"{scale=} must be above 0")
        self.n = n
        samples = [_checked(worker, sample) for worker, sample in enumerate(samples[:n])]
        self.means = scale * np.array([sample.mean() for sample in samples])
        self._counts = np.array([len(sample) for sample in samples])
        self._first = np.cumsum(self._counts) - self._counts
        self._times = scale * np.concatenate(samples)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        drawn: Array = self._times[self._first + (rng.random(self.n) * self._counts).astype(np.int64)]
        return drawn


def _checked(worker: int, sample: Array) -> Array:
    if not len(sample):
        raise ValueError(
            f"worker {worker} has no recorded time; record a run in which every worker gets tasks, "
            "as with the allocator uta"
        )
    if not np.all((sample > 0) & (sample < np.inf)):
        raise ValueError(f"the recorded times of worker {worker} must be above 0 seconds and finite")
    return sample


def parse_samples(text: str, column: str = "seconds") -> list[Array]:
    """Return the sample of each worker in a CSV text with the columns worker and `column`."""
    header, *lines = text.splitlines() or [""]
    if [name.strip() for name in header.split(",")] != ["worker", column]:
        raise ValueError(f"line 1: {header[:80]!r} must be the header worker,{column}")
    samples: dict[int, list[float]] = {}
    for number, line in enumerate(lines, 2):
        if line.strip():
            worker, time = _parsed(number, line, column)
            samples.setdefault(worker, []).append(time)
    missing = next(i for i in count() if i not in samples)
    if missing < max(len(samples), 1):
        raise ValueError(f"there is no time of worker {missing}; workers are counted from 0 without gaps")
    return [np.array(samples[worker]) for worker in range(missing)]


def _parsed(number: int, line: str, column: str) -> tuple[int, float]:
    """Return worker and time of one line."""
    try:
        worker, time = line.split(",")
        found = int(worker), float(time)
    except ValueError:
        found = -1, math.nan
    if not (found[0] >= 0 and 0 < found[1] < math.inf):
        rule = f"a worker, counted from 0, and {column} above 0, such as 0,1.25"
        raise ValueError(f"line {number}: {line[:80]!r} must be {rule}")
    return found
