"""How each allocator decides, in words, and what one worker would need for another decision."""

from copy import deepcopy

import numpy as np

from mpi_ata.allocators import GTA, OFTA, UTA, Allocator, ATAAuto, Bandit, MSync, Proportional
from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.arrays import BoolArray, IntArray

STEPS = 24  # of a bisection: the ratio of the ends shrinks to 1.00002
REACH = 1000.0  # means are changed by up to this factor


def rule(allocator: Allocator | None) -> str:
    """Return in one sentence what decides the quotas."""
    match allocator:
        case None:
            return "The run file alone does not say how tasks are divided."
        case Bandit():
            return f"bandit gives equal shares to the {allocator.picks} workers with the least lower bounds."
        case LowerBoundAllocator():
            return (
                "Quotas minimise the longest time of a worker, quota x lower bound; "
                "workers whose bound is still 0 are explored first and share the whole round."
            )
        case ATAAuto():
            return (
                "ata-auto chooses the quotas of the shortest expected round, "
                "and now and then tries a worker that might turn out faster."
            )
        case OFTA():
            return "ofta knows the true means; its quotas minimise the longest time, quota x mean."
        case UTA():
            return "uta gives everyone the same share, and the remainder at random; speeds do not matter."
        case GTA():
            return f"gta lets everyone work until {allocator.budget} results are in; speeds do not matter."
        case MSync():
            return "m-sync gives everyone the same quota and uses the first results; speeds do not matter."
        case Proportional():
            return "proportional gives shares by measured speed, rounded at random; everyone has one."
    return "The run file alone does not say how tasks are divided."


def depends_on_means(allocator: Allocator | None) -> bool:
    """Return whether a mean can decide if a worker gets tasks at all."""
    return isinstance(allocator, LowerBoundAllocator | ATAAuto | OFTA)


def planned(allocator: Allocator, available: BoolArray) -> IntArray:
    """Return the next quotas without trials of workers that might be faster."""
    allocator = deepcopy(allocator)
    quota = allocator.allocate(available)
    return allocator.quota if isinstance(allocator, ATAAuto) else quota


def with_mean(allocator: Allocator, worker: int, mean: float) -> Allocator:
    """Return the same allocator with another mean of one worker's task times."""
    changed = deepcopy(allocator)
    match changed:
        case LowerBoundAllocator():
            changed.T[worker] = mean * changed.K[worker]
        case ATAAuto():
            model = changed.known.model
            model.T[worker], changed.due = mean * model.N[worker], 0
        case OFTA():
            means = changed.means.copy()
            means[worker] = mean
            changed = OFTA(changed.n, changed.budget, means)
    return changed


def mean_to_be_used(
    allocator: Allocator | None, available: BoolArray, worker: int, mean: float
) -> float | None:
    """Return the largest mean at which a worker still gets a task; None where means do not decide that."""
    if allocator is None or not depends_on_means(allocator) or np.isnan(mean) or not available[worker]:
        return None

    def used(mean: float) -> bool:
        return bool(planned(with_mean(allocator, worker, mean), available)[worker])

    low, high = (mean, REACH * mean) if used(mean) else (mean / REACH, mean)
    if not used(low) or used(high):
        return None
    for _ in range(STEPS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if used(middle) else (low, middle)
    return low
