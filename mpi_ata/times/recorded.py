"""Laws of recorded times: each worker's times are drawn from its own sample with replacement."""

import csv
import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.times.laws import check_law


class Recorded:
    """Draws each worker's times, with replacement, from its own sample.

    Worker i has samples[i]; if there are more samples than workers, the first n are used.
    """

    def __init__(self, n: int, samples: Sequence[Array], scale: float = 1.0) -> None:
        rule = f"must be from 1 to {len(samples)}, the number of recorded workers"
        require(1 <= n <= len(samples), f"{n=} {rule}; choose another number of workers")
        check_law(n, scale)
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
    way_out = "record a run in which every worker gets tasks, as with the allocator uta"
    require(len(sample) > 0, f"worker {worker} has no recorded time; {way_out}")
    rule = f"the recorded times of worker {worker} must be above 0 seconds and finite"
    require(bool(np.all((sample > 0) & (sample < np.inf))), rule)
    return sample


def parse_samples(text: str, column: str = "seconds") -> list[Array]:
    """Return the sample of each worker in a CSV text with the columns worker and `column`."""
    header, *lines = text.splitlines() or [""]
    names = [name.strip() for name in header.split(",")]
    require(names == ["worker", column], f"line 1: {header[:80]!r} must be the header worker,{column}")
    samples: dict[int, list[float]] = {}
    for number, line in enumerate(lines, 2):
        if line.strip():
            worker, time = _parsed(number, line, column)
            samples.setdefault(worker, []).append(time)
    missing = next(i for i in count() if i not in samples)
    rule = f"there is no time of worker {missing}; workers are counted from 0 without gaps"
    require(missing >= max(len(samples), 1), rule)
    return [np.array(samples[worker]) for worker in range(missing)]


def _parsed(number: int, line: str, column: str) -> tuple[int, float]:
    """Return worker and time of one line."""
    try:
        worker, time = line.split(",")
        found = int(worker), float(time)
    except ValueError:
        found = -1, math.nan
    rule = f"a worker, counted from 0, and {column} above 0, such as 0,1.25"
    require(found[0] >= 0 and 0 < found[1] < math.inf, f"line {number}: {line[:80]!r} must be {rule}")
    return found


FOLDER = Path(__file__).parent / "machines"
GENERATIONS = ("k80", "p100", "v100")


class Lognormal:
    """Lognormal times with the given mean and coefficient of variation of each worker."""

    def __init__(self, means: npt.ArrayLike, cv: npt.ArrayLike) -> None:
        self.means = np.array(means, np.float64)
        self.n = len(self.means)
        variance = np.log1p(np.square(np.broadcast_to(np.asarray(cv, np.float64), self.n)))
        self._center, self._deviation = np.log(self.means) - variance / 2, np.sqrt(variance)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        times = rng.standard_normal(self.n)
        times *= self._deviation
        times += self._center
        return np.exp(times, out=times)


def lonestar6(n: int, seed: int = 0, scale: float = 1.0, cv: float = 0.01) -> Lognormal:
    """Return the law of A100s of Lonestar6 training ResNet-50; each was timed once, so `cv` is assumed."""
    return _gpus("lonestar6-resnet", n, seed, scale, cv)


def longhorn(
    n: int, seed: int = 0, scale: float = 1.0, workload: str = "sgemm", cv: float | None = None
) -> Lognormal:
    """Return the law of V100s of Longhorn multiplying matrices ("sgemm") or training ResNet-50 ("resnet")."""
    _check_workload(workload, ["resnet", "sgemm"])
    return _gpus(f"longhorn-{workload}", n, seed, scale, cv)


def frontera(n: int, seed: int = 0, scale: float = 1.0, cv: float | None = None) -> Lognormal:
    """Return the law of RTX 5000s of Frontera training ResNet-50."""
    return _gpus("frontera-resnet", n, seed, scale, cv)


def gpu_generations(
    n: int,
    seed: int = 0,
    scale: float = 1.0,
    workload: str = "ResNet-50 (batch size 32)",
    cv: float = 0.03,
) -> Lognormal:
    """Return the law of K80s, P100s and V100s in equal numbers, in seconds per step; `cv` is assumed."""
    rows = {row["workload"]: row for row in _rows("gpu-generations")}
    _check_workload(workload, list(rows))
    _check(n, scale, cv)
    seconds = np.array([1 / float(rows[workload][kind]) for kind in GENERATIONS])
    return Lognormal(scale * seconds[chosen_records(len(seconds), n, seed)], cv)


def bytedance_ar(n: int, seed: int = 0, scale: float = 1.0) -> Recorded:
    """Return the law of the ranks of a training job of which one is 2.3 times as slow as the others."""
    return _ranks("bytedance-ar", n, seed, scale)


def bytedance_se(n: int, seed: int = 0, scale: float = 1.0) -> Recorded:
    """Return the law of ranks that are nearly equally fast, whose task times depend on sequence lengths."""
    return _ranks("bytedance-se", n, seed, scale)


def chosen_records(records: int, n: int, seed: int) -> IntArray:
    """Return the record of each of n workers; that of worker i does not depend on n."""
    rounds = -(-n // records)
    chosen = Streams(seed, Purpose.MACHINES).at(0).permuted(np.tile(np.arange(records), (rounds, 1)), axis=1)
    return chosen.ravel()[:n]


def _gpus(name: str, n: int, seed: int, scale: float, cv: float | None) -> Lognormal:
    """Return the law of GPUs whose medians and spreads were recorded; a `cv` replaces the spreads."""
    _check(n, scale, cv)
    rows = _rows(name)
    chosen = chosen_records(len(rows), n, seed)
    medians = np.array([float(row["relative"]) for row in rows])[chosen]
    spreads = _spreads(rows)[chosen] if cv is None else np.full(n, cv)
    return Lognormal(scale * medians * np.sqrt(1 + spreads**2), spreads)  # the mean of a lognormal


def _spreads(rows: Sequence[dict[str, str]]) -> Array:
    """Return the recorded spreads; a GPU that was timed once has the median of the others'."""
    spreads = np.array([float(row["cv"] or "nan") for row in rows])
    return np.where(np.isnan(spreads), np.nanmedian(spreads), spreads)


def _ranks(name: str, n: int, seed: int, scale: float) -> Recorded:
    """Return the law of ranks whose single times were recorded."""
    _check(n, scale)
    samples = parse_samples((FOLDER / f"{name}.csv").read_text(), "relative")
    return Recorded(n, [samples[i] for i in chosen_records(len(samples), n, seed)], scale)


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _check(n: int, scale: float, cv: float | None = None) -> None:
    check_law(n, scale)
    require(cv is None or cv >= 0, f"{cv=} must be at least 0; 0.03 is a spread of 3 %")


def _check_workload(workload: str, valid: Sequence[str]) -> None:
    require(workload in valid, f"{workload=} must be one of: {', '.join(valid)}")
