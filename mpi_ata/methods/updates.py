"""How a gradient moves the point."""

from collections.abc import Callable
from typing import Any, Protocol

from mpi_ata.arrays import Array, State


class Update(Protocol):
    """Turns a point and a gradient into the next point."""

    def __call__(self, x: Array, g: Array) -> Array:
        """The next point, in an array of its own; g may be overwritten."""

    def state(self) -> State:
        """What it remembers of the steps so far."""

    def restore(self, state: State) -> None:
        """Go on from what `state` gave."""


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

    def state(self) -> State:
        """Nothing is remembered."""
        return {}

    def restore(self, state: State) -> None:
        """There is nothing to take over."""


UPDATES: dict[str, Callable[..., Any]] = {"plain": Plain}
