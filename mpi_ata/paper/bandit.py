"""The bandit alone: an allocator decides and learns from drawn times, round after round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpi_ata.allocators import ATA, ATAEmpirical
from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.arrays import Array, State
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.driver.trace import Regret
from mpi_ata.errors import UsageError
from mpi_ata.job.schema import Job
from mpi_ata.times import DrawnTimes, Exponential, Law, Linear, Sqrt

Play = Callable[[int], tuple[float, float]]  # so many more rounds: their length, and their regret


@dataclass
class Checkpoint:
    """What an allocator has learned so far, how long that took, and how much longer than need be."""

    allocator: LowerBoundAllocator
    speeds: State  # sums over the tasks of each worker, as a cluster keeps them
    clock: float = 0.0
    regret: float = 0.0


def checkpoints(
    job: Job, marks: Sequence[int], note: Callable[[int], None] = lambda _: None
) -> Iterator[Checkpoint]:
    """Play the rounds of a job without its tasks; yields what was learned after each of `marks` rounds."""
    n = job.run.workers or 1
    times = job.build_times(n)
    allocator = job.build_allocator(n, times)
    if job.times is None or times is None or not isinstance(allocator, LowerBoundAllocator):
        raise UsageError("the bandit alone needs a law of times, and an allocator that learns from them")
    speeds = TaskTimeStats(n)
    checkpoint = Checkpoint(allocator, speeds.state())
    law = job.times.law.build(n=n) if job.times.unit == 1.0 else None
    fast = compiled(checkpoint, law, job.run.seed)
    play, step = (fast, 20_000) if fast else (interpreted(allocator, times, speeds), 100)
    for mark in marks:
        while allocator.k < mark:
            clock, regret = play(min(step, mark - allocator.k))
            checkpoint.clock += clock
            checkpoint.regret += regret
            note(allocator.k)
        speeds.state()
        yield checkpoint


def interpreted(allocator: LowerBoundAllocator, times: DrawnTimes, speeds: TaskTimeStats) -> Play:
    """Rounds in Python, for any allocator and any law."""
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
                speeds.add(i, seconds)
                longest = max(longest, sum(seconds))
            clock += longest
            regret += loss.of(a)
        return clock, regret

    return play


def compiled(checkpoint: Checkpoint, law: Law | None, seed: int) -> Play | None:
    """The same rounds compiled, for the paper's own allocators and laws of exponential times, with numba."""
    allocator, speeds = checkpoint.allocator, checkpoint.speeds
    factor, scales = _factor(allocator), _scales(law)
    if factor is None or scales is None or law is None or not has_numba():
        return None
    from mpi_ata.paper import kernel

    rule = (type(allocator) is ATAEmpirical, factor, allocator.budget)
    loss = (law.means, Regret(law.means, allocator.budget).least)
    sums = (allocator.K, allocator.T, speeds["squares"], speeds["least"], speeds["arrivals"])

    def play(rounds: int) -> tuple[float, float]:
        first, allocator.k = allocator.k, allocator.k + rounds
        clock, regret = kernel.play(*rule, *scales, *loss, np.uint64(seed), first, *sums, rounds)
        speeds["tasks"][:], speeds["seconds"][:] = allocator.K, allocator.T
        return clock, regret

    return play


def has_numba() -> bool:
    """Whether numba is installed."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def _factor(allocator: LowerBoundAllocator) -> float | None:
    """What an allocator's confidence widths are multiplied by; None where its rule is not known."""
    if type(allocator) is ATA:
        return allocator.alpha
    return allocator.eta if type(allocator) is ATAEmpirical else None


def _scales(law: Law | None) -> tuple[float, Array] | None:
    """Offset and scales of a law of the form (offset + Exp(1)) scale_i."""
    if isinstance(law, Sqrt | Linear):
        return 1.0, law.shifts
    return (0.0, law.means) if isinstance(law, Exponential) else None
