"""The bandit alone: an allocator decides and learns from drawn times, round after round."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.allocators import ATA, ATAEmpirical
from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError
from mpi_ata.job import Job
from mpi_ata.times import DrawnTimes, Exponential, Law, Linear, Sqrt
from mpi_ata.trace import Regret

Play = Callable[[int], float]  # so many more rounds, and their regret


class Lesson(NamedTuple):
    """What an allocator has learned, and the regret after so many rounds."""

    allocator: LowerBoundAllocator
    rounds: list[int]
    regret: list[float]


def learn(job: Job, marks: Sequence[int], note: Callable[[int], None] = lambda _: None) -> Lesson:
    """Play the rounds of a job up to the last of `marks`, keeping the regret at each of them."""
    n = job.run.workers or 1
    times = job.build_times(n)
    allocator = job.build_allocator(n, times)
    if job.times is None or times is None or not isinstance(allocator, LowerBoundAllocator):
        raise UsageError("the bandit alone needs a law of times, and an allocator that learns from them")
    law: Law = job.times.law.build(n=n)
    play = compiled(allocator, law, job.run.seed) if job.times.unit == 1.0 else None
    play, step = (play, 20_000) if play else (interpreted(allocator, times), 100)
    regret, total = [], 0.0
    for mark in marks:
        while allocator.k < mark:
            total += play(min(step, mark - allocator.k))
            note(allocator.k)
        regret.append(total)
    return Lesson(allocator, list(marks), regret)


def interpreted(allocator: LowerBoundAllocator, times: DrawnTimes) -> Play:
    """Rounds in Python, for any allocator and any law."""
    regret = Regret(times.means, allocator.budget)

    def play(rounds: int) -> float:
        total = 0.0
        for _ in range(rounds):
            a = allocator.allocate()
            for i in np.flatnonzero(a).tolist():
                allocator.observe(i, times.of(i, allocator.k, 0, a.item(i)))
            total += regret.of(a)
        return total

    return play


def compiled(allocator: LowerBoundAllocator, law: Law, seed: int) -> Play | None:
    """The same rounds compiled, for the paper's own allocators and laws of exponential times, with numba."""
    factor, scales = _factor(allocator), _scales(law)
    if factor is None or scales is None or not has_numba():
        return None
    from mpi_ata.paper import kernel

    rule = (type(allocator) is ATAEmpirical, factor, allocator.budget)
    loss = (law.means, Regret(law.means, allocator.budget).least)

    def play(rounds: int) -> float:
        first, allocator.k = allocator.k, allocator.k + rounds
        return float(
            kernel.play(*rule, *scales, *loss, np.uint64(seed), first, allocator.K, allocator.T, rounds)
        )

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


def _scales(law: Law) -> tuple[float, Array] | None:
    """Offset and scales of a law of the form (offset + Exp(1)) scale_i."""
    if isinstance(law, Sqrt | Linear):
        return 1.0, law.shifts
    return (0.0, law.means) if isinstance(law, Exponential) else None
