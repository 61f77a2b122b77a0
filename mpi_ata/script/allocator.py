"""The allocator of a script: by its name, as an object, or as a function of the number of workers."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mpi_ata.allocators import Allocator
from mpi_ata.errors import UsageError, describe_error
from mpi_ata.job.component import Component, pick
from mpi_ata.job.names import ALLOCATORS
from mpi_ata.times import DrawnTimes

AnyAllocator = str | Allocator | Callable[[int], Allocator]
DEFAULT = "ata-auto"  # which has nothing to tune


def build_allocator(
    chosen: AnyAllocator | None, n: int, budget: int | None, seed: int, times: DrawnTimes | None = None
) -> Allocator:
    """Return the chosen allocator for n workers; reject one for another number or budget."""
    chosen = DEFAULT if chosen is None else chosen
    if isinstance(chosen, str):
        return _named(chosen, n, budget, seed, times)
    is_built = hasattr(chosen, "allocate") and not isinstance(chosen, type)
    # What it learns in this run must not reach the next.
    allocator: Any = deepcopy(chosen) if is_built else _made(chosen, n)
    given = getattr(allocator, "n", "no"), getattr(allocator, "budget", "no")
    if given[0] != n or given[1] == "no" or budget not in (None, given[1]):
        raise UsageError(
            f"the allocator is for {given[0]} workers and a budget of {given[1]}, but the run has {n} "
            f"and {budget}; pass a function of n, as in allocator=lambda n: UTA(n, budget=8)"
        )
    found: Allocator = allocator
    return found


def _made(chosen: Any, n: int) -> Any:
    try:
        return chosen(n) if callable(chosen) else None
    except Exception as error:
        way_out = "pass a function of n, as in allocator=lambda n: UTA(n, budget=8)"
        raise UsageError(
            f"allocator={chosen!r} cannot be called with n={n}: {describe_error(error)}; {way_out}"
        ) from None


def _named(name: str, n: int, budget: int | None, seed: int, times: DrawnTimes | None) -> Allocator:
    if budget is None:
        raise UsageError("how many results does a round need? Give budget=23, say")
    cls = pick("allocator", "name", {"name": name}, ALLOCATORS)
    known = {"n": n, "seed": seed} | ({"means": times.means} if times else {})
    built: Allocator = Component("allocator", cls, {"budget": budget}).build(**known)
    return built
