"""The bandit alone: rounds in which an allocator decides and learns from drawn times, without gradients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from mpi_ata.allocators import ATA, ATAEmpirical
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.arrays import Array, State
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.driver.trace import Regret, Trace
from mpi_ata.job import Job
from mpi_ata.job.build import build_allocator, build_law, build_times
from mpi_ata.times import DrawnTimes, Exponential, Law, Linear, Sqrt

Play = Callable[[int], tuple[float, float]]  # plays that many more rounds; returns their length and regret


@dataclass
class BanditState:
    """What an allocator has learned so far, and the totals of the rounds it took."""

    allocator: LowerBoundAllocator
    stats: State  # task times of each worker, as in TaskTimeStats
    trace: Trace = field(default_factory=Trace)


def play_bandit(
    job: Job, marks: Sequence[int], report: Callable[[int], None] = lambda _: None
) -> Iterator[BanditState]:
    """Play the rounds of a job without gradients, and yield what was learned after each of `marks` rounds."""
    n = job.run.workers or 1
    times = build_times(job, n)
    allocator = build_allocator(job, n, times)
    assert job.times is not None
    assert times is not None
    assert isinstance(allocator, LowerBoundAllocator), "only these learn from task times"
    stats = TaskTimeStats(n)
    learned = BanditState(allocator, stats.state())
    trace = learned.trace
    trace.regret = 0.0
    law = build_law(job.times, n, job.run.seed) if job.times.unit == 1.0 else None
    fast = compiled_play(learned, law, job.run.seed)
    play, step = (fast, 20_000) if fast else (python_play(allocator, times, stats), 100)
    for mark in marks:
        while allocator.k < mark:
            clock, regret = play(min(step, mark - allocator.k))
            trace.clock += clock
            trace.regret += regret
            report(allocator.k)
        stats.state()
        trace.round, trace.used = allocator.k, int(allocator.K.sum())
        trace.worker_time = float(allocator.T.sum())
        trace.record()
        yield learned


def python_play(allocator: LowerBoundAllocator, times: DrawnTimes, stats: TaskTimeStats) -> Play:
    """Return a function that plays rounds in Python, for any allocator and law."""
    loss = Regret(times.means, allocator.budget)
    everyone = np.ones(allocator.n, np.bool_)

    def play(rounds: int) -> tuple[float, float]:
        clock = regret = 0.0
        for _ in range(rounds):
            a = allocator.allocate(everyone)
            longest = 0.0
            for i in np.flatnonzero(a).tolist():
                seconds = times.of(i, allocator.k, 0, a.item(i))
                allocator.observe(i, seconds)
                stats.add(i, seconds)
                longest = max(longest, sum(seconds))
            clock += longest
            regret += loss.of(a)
        return clock, regret

    return play


def compiled_play(learned: BanditState, law: Law | None, seed: int) -> Play | None:
    """Return a compiled function that plays the same rounds; None if numba, rule or law do not allow it."""
    allocator, stats = learned.allocator, learned.stats
    factor, scales = _factor(allocator), _scales(law)
    if factor is None or scales is None or law is None or not has_numba():
        return None
    from mpi_ata.paper import kernel

    rule = (type(allocator) is ATAEmpirical, factor, allocator.budget)
    loss = (law.means, Regret(law.means, allocator.budget).least)
    sums = (allocator.K, allocator.T, stats["squares"], stats["least"], stats["arrivals"])

    def play(rounds: int) -> tuple[float, float]:
        first, allocator.k = allocator.k, allocator.k + rounds
        clock, regret = kernel.play(rule, scales, loss, seed, first, rounds, sums)
        stats["tasks"][:], stats["seconds"][:] = allocator.K, allocator.T
        return clock, regret

    return play


def has_numba() -> bool:
    """Return whether numba is installed."""
    return find_spec("numba") is not None


def _factor(allocator: LowerBoundAllocator) -> float | None:
    """Return the factor of an allocator's confidence widths; None if its rule is not compiled."""
    if allocator.detector is not None:
        return None
    if type(allocator) is ATA:
        return allocator.alpha
    return allocator.eta if type(allocator) is ATAEmpirical else None


def _scales(law: Law | None) -> tuple[float, Array] | None:
    """Return offset and scales of a law of the form (offset + Exp(1)) scale_i; None for other laws."""
    if isinstance(law, Sqrt | Linear):
        return 1.0, law.shifts
    return (0.0, law.means) if isinstance(law, Exponential) else None
