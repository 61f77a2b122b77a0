"""A user's own law, checked when the job is built and in every draw."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array
from mpi_ata.errors import RunError, UsageError, describe_error


class UserLaw:
    """A law from a user's file; `means` must hold, and `draw` return, one time above 0 per worker."""

    def __init__(self, law: Any, n: int) -> None:
        self.n, self._law, self._name = n, law, type(law).__name__
        if not callable(getattr(law, "draw", None)):
            raise UsageError(f"[times] {self._name} needs draw(rng), which returns one time per worker")
        self.means = self._checked("means", lambda: law.means)
        self._checked("draw(rng)", lambda: law.draw(np.random.default_rng(0)))

    def _checked(self, what: str, get: Callable[[], Any]) -> Array:
        try:
            times = get()
        except Exception as error:
            raise UsageError(f"[times] {self._name}: {describe_error(error)}") from None
        if complaint := _complaint(times, self.n):
            raise UsageError(f"[times] {self._name}: {what} {complaint}")
        return np.array(times, np.float64)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        drawn = self._law.draw(rng)
        if complaint := _complaint(drawn, self.n):
            raise RunError(f"draw(rng) of {self._name} {complaint}")
        return np.asarray(drawn, np.float64)


def _complaint(times: Any, n: int) -> str:
    """Return what is wrong with the times of n workers; nothing if they are right."""
    rule = f"must be {n} times above 0 and finite, one per worker"
    try:
        found = np.asarray(times, np.float64)
    except (TypeError, ValueError):
        return f"{rule}, not of type {type(times).__name__}"
    if found.shape != (n,):
        return f"{rule}, not of shape {found.shape}"
    wrong = np.flatnonzero(~((found > 0) & (found < np.inf)))
    return f"{rule}, but worker {wrong[0]} has {found[wrong[0]]}" if len(wrong) else ""
