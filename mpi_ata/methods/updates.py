"""How a gradient moves the point."""

from collections.abc import Callable
from typing import Any, Protocol

from mpi_ata.arrays import Array


class Update(Protocol):
    """Turns a point and a gradient into the next point."""

    def __call__(self, x: Array, g: Array) -> Array:
        """The next point, in an array of its own; g may be overwritten."""


class Plain:
    """x - gamma g."""

    def __init__(self, step_size: float) -> None:
        if not step_size > 0:
            raise ValueError(f"{step_size=} must be above 0")
        self.step_size = step_size

    def __call__(self, x: Array, g: Array) -> Array:
        """One step against the gradient."""
        g *= -self.step_size
        g += x
        return g


UPDATES: dict[str, Callable[..., Any]] = {"plain": Plain}
